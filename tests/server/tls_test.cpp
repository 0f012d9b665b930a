// HTTPS: the promises of docs/operate/security.md about connections also hold with TLS.
#include "server/http/tls.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "engine/log.h"
#include "server/http/listening_socket.h"
#include "tests/server/command_runner.h"
#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename T, void (*free)(T*)>
struct Free {
  void operator()(T* object) const { free(object); }
};
template <typename T, void (*free)(T*)>
using Owned = std::unique_ptr<T, Free<T, free>>;

// A self-signed certificate for 127.0.0.1 and its key, in two files of the running test.
struct Certificate {
  explicit Certificate(const std::string& name) {
    const std::string base =
        ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name() + name;
    cert = base + ".cert.pem";
    key = base + ".key.pem";
    write("smartkv " + name);
  }

  void write(const std::string& common_name) const {
    const Owned<EVP_PKEY, EVP_PKEY_free> pair(EVP_EC_gen("P-256"));
    const Owned<X509, X509_free> x509(X509_new());
    X509_set_version(x509.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(x509.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509.get()), 3600);
    X509_set_pubkey(x509.get(), pair.get());
    X509_NAME* subject = X509_get_subject_name(x509.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(common_name.c_str()),
                               -1, -1, 0);
    X509_set_issuer_name(x509.get(), subject);
    const Owned<X509_EXTENSION, X509_EXTENSION_free> address(
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1"));
    X509_add_ext(x509.get(), address.get(), -1);
    X509_sign(x509.get(), pair.get(), EVP_sha256());
    FILE* file = std::fopen(cert.c_str(), "w");
    PEM_write_X509(file, x509.get());
    std::fclose(file);
    file = std::fopen(key.c_str(), "w");
    PEM_write_PrivateKey(file, pair.get(), nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
  }

  http::HttpOptions options(http::HttpOptions rest = {}) const {
    rest.tls_cert = cert;
    rest.tls_key = key;
    return rest;
  }

  httplib::Client client(int port) const {
    httplib::Client client("https://127.0.0.1:" + std::to_string(port));
    client.set_ca_cert_path(cert);
    client.set_read_timeout(60);
    return client;
  }

  std::string cert, key;
};

// A client's connection of plain bytes inside TLS.
class RawTls {
 public:
  explicit RawTls(int port)
      : connection_(port), context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_.get())) {
    SSL_set_fd(ssl_.get(), connection_.socket());
    if (SSL_connect(ssl_.get()) != 1) throw std::runtime_error("handshake");
  }

  void send(const std::string& bytes) { SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())); }
  std::string read_until(const std::string& mark) {
    std::string text;
    std::array<char, 4096> buffer;
    while (text.find(mark) == text.npos) {
      const int n = SSL_read(ssl_.get(), buffer.data(), static_cast<int>(buffer.size()));
      if (n <= 0) break;
      text.append(buffer.data(), static_cast<size_t>(n));
    }
    return text;
  }
  std::string read_all() { return read_until("\xff never"); }
  bool ended_in_order() const { return SSL_get_shutdown(ssl_.get()) == SSL_RECEIVED_SHUTDOWN; }
  std::string subject() const {
    const Owned<X509, X509_free> peer(SSL_get1_peer_certificate(ssl_.get()));
    std::array<char, 256> text{};
    X509_NAME_oneline(X509_get_subject_name(peer.get()), text.data(), static_cast<int>(text.size()));
    return text.data();
  }

 private:
  RawConnection connection_;
  Owned<SSL_CTX, SSL_CTX_free> context_;
  Owned<SSL, SSL_free> ssl_;
};

const std::string kHealthRequest = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";

TEST(Tls, BeyondMaxConnectionsAnswersSayWhenToComeBack) {
  const Certificate certificate("");
  TestServer server(certificate.options({.max_connections = 1}));
  RawTls used(server.port);
  used.send("GET /health HTTP/1.1\r\n");
  for (int i = 0; i < 20; ++i) {
    RawTls surplus(server.port);
    surplus.send(kHealthRequest);
    EXPECT_THAT(surplus.read_all(), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After: 1\r\n")));
  }
  used.send("\r\n");
  EXPECT_THAT(used.read_until("}"), StartsWith("HTTP/1.1 200"));
}

TEST(Tls, AnswersWholeAndStreamed) {
  const Certificate certificate("");
  TestServer server(certificate.options());
  auto client = certificate.client(server.port);
  EXPECT_EQ(client.Get("/health")->status, 200);
  const auto whole = client.Post("/v1/completions", R"({"prompt": "abc"})", "application/json");
  EXPECT_EQ(Json::parse(whole->body)["choices"][0]["text"], "Paris.");
  const auto stream = client.Post("/v1/completions", R"({"prompt": "abc", "stream": true})", "application/json");
  EXPECT_EQ(sse_data(stream->body).back(), "[DONE]");
}

TEST(Tls, HealthIsAskedOverIt) {
  const Certificate certificate("");
  const TestServer server(certificate.options());
  const std::string port = std::to_string(server.port);
  EXPECT_EQ(run({"health", "--port", port.c_str(), "--tls-cert", certificate.cert.c_str(), "--tls-key",
                 certificate.key.c_str()})
                .code,
            kOk);
  EXPECT_EQ(run({"health", "--port", port.c_str()}).code, kRuntimeError);
}

TEST(Tls, LargeBodiesAndAnswersPassWhole) {
  const Certificate certificate("");
  TestServer server(certificate.options());
  auto client = certificate.client(server.port);
  const std::string text(1'000'000, 'a');
  const auto response = client.Post("/tokenize", Json{{"prompt", text}}.dump(), "application/json");
  ASSERT_TRUE(response);
  EXPECT_EQ(Json::parse(response->body)["count"], 1'000'000);
}

TEST(Tls, PipelinedRequestsOfOneRecordAreAnsweredInOrder) {
  const Certificate certificate("");
  TestServer server(certificate.options());
  RawTls connection(server.port);
  connection.send(post_text("/tokenize", R"({"prompt": "a"})") + post_text("/tokenize", R"({"prompt": "b"})") +
                  "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string answers = connection.read_all();
  const size_t first = answers.find("[97]"), second = answers.find("[98]"), last = answers.find("\"ok\"");
  EXPECT_TRUE(first < second && second < last && last != answers.npos) << answers;
  EXPECT_TRUE(connection.ended_in_order());
}

TEST(Tls, IdleAndDrippingOnesHoldNoThread) {
  constexpr int kIdle = 300, kDripping = 300;
  if (http::raise_open_file_limit() < 2 * (kIdle + kDripping) + 200) GTEST_SKIP() << "too few open files are allowed";
  const Certificate certificate("");
  TestServer server(certificate.options({.http_threads = 2}));
  std::vector<std::unique_ptr<RawTls>> idle;
  std::vector<std::unique_ptr<RawConnection>> dripping;
  for (int i = 0; i < kIdle; ++i) {
    idle.push_back(std::make_unique<RawTls>(server.port));
    idle.back()->send(kHealthRequest);
    ASSERT_THAT(idle.back()->read_until("}"), StartsWith("HTTP/1.1 200")) << i;
  }
  for (int i = 0; i < kDripping; ++i) {
    dripping.push_back(std::make_unique<RawConnection>(server.port));
    dripping.back()->send(std::string("\x16\x03\x01\x02", 4));  // begins a ClientHello of at least 512 bytes
  }
  EXPECT_EQ(certificate.client(server.port).Get("/health")->status, 200);
  for (auto& connection : dripping) connection->send(std::string("\x00\x01", 2));
  idle[123]->send(kHealthRequest.substr(0, 10));
  EXPECT_EQ(certificate.client(server.port).Get("/health")->status, 200);
  idle[123]->send(kHealthRequest.substr(10));  // every connection still works
  EXPECT_THAT(idle[123]->read_until("}"), StartsWith("HTTP/1.1 200"));
}

TEST(Tls, AHandshakeHasADeadline) {
  const Certificate certificate("");
  TestServer server(certificate.options({.timeouts = {.keep_alive_s = 1}}));
  RawConnection silent(server.port), begun(server.port);
  begun.send(std::string("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_EQ(begun.read_all(), "");
  RawTls idle(server.port);
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.ended_in_order());
}

TEST(Tls, WhatIsNotTlsIsClosed) {
  const Certificate certificate("");
  TestServer server(certificate.options());
  RawConnection plain(server.port);
  plain.send(kHealthRequest);
  EXPECT_THAT(plain.read_all(), ::testing::Not(HasSubstr("HTTP")));
  EXPECT_EQ(certificate.client(server.port).Get("/health")->status, 200);
}

TEST(Tls, LeavingAStreamCancelsIt) {
  const Certificate certificate("");
  TestServer server(certificate.options());
  server.engine.hold_after(1);
  {
    RawTls connection(server.port);
    connection.send(post_text("/v1/completions", R"({"prompt": "abc", "stream": true})"));
    EXPECT_THAT(connection.read_until("Pa"), HasSubstr("200 OK"));
  }
  EXPECT_TRUE(server.engine.wait_for_live_streams(0));
}

TEST(Tls, ReloadingGivesNewConnectionsTheNewCertificate) {
  const Certificate certificate("");
  TestServer server(certificate.options());
  RawTls before(server.port);
  certificate.write("renewed");
  server.server.reload();
  EXPECT_THAT(RawTls(server.port).subject(), HasSubstr("renewed"));
  before.send(kHealthRequest);
  EXPECT_THAT(before.read_until("}"), StartsWith("HTTP/1.1 200"));
  std::ofstream(certificate.key) << "broken";
  ::testing::internal::CaptureStderr();
  server.server.reload();
  flush_log(std::chrono::seconds(10));  // other tests may have moved the log to a thread
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(certificate.key));
  EXPECT_THAT(RawTls(server.port).subject(), HasSubstr("renewed"));
}

TEST(Tls, FilesThatCannotBeUsedAreErrorsAtStart) {
  const Certificate one("1"), other("2");
  const auto error_of = [](const std::string& cert, const std::string& key) -> std::string {
    try {
      TestServer server({.tls_cert = cert, .tls_key = key});
    } catch (const http::TlsError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(one.cert, one.key), "");
  EXPECT_THAT(error_of(one.cert, ""), HasSubstr("tls_cert alone"));
  EXPECT_THAT(error_of("", one.key), HasSubstr("tls_key alone"));
  EXPECT_THAT(error_of("/nonexistent.pem", one.key),
              HasSubstr("/nonexistent.pem: the certificate cannot be read: No such file"));
  EXPECT_THAT(error_of("/dev/null", one.key),
              HasSubstr("/dev/null: the certificate cannot be read: it is not a regular file"));
  EXPECT_THAT(error_of(one.key, one.key), HasSubstr(one.key + ": expected a certificate"));
  EXPECT_THAT(error_of(one.cert, other.key), HasSubstr(other.key + ": expected the key of " + one.cert));
}

}  // namespace
}  // namespace smartkv::test
