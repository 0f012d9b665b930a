#include "server/http/tls.h"

#include <openssl/err.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <string>
#include <system_error>
#include <utility>

namespace smartkv::http {

namespace {

// Returns the latest OpenSSL error of this thread, and clears the thread's errors.
std::string last_error() {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_peek_last_error(), text.data(), text.size());
  ERR_clear_error();
  return text.data();
}

int clamped(size_t size) { return static_cast<int>(std::min<size_t>(size, INT_MAX)); }

}  // namespace

TlsSession::TlsSession(SSL_CTX* context, int socket) : ssl_(SSL_new(context)) {
  if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), socket) != 1) throw TlsError("cannot begin TLS: " + last_error());
  SSL_set_accept_state(ssl_.get());
}

ssize_t TlsSession::result(int n, int retry) {
  if (n > 0) return n;
  const int error = SSL_get_error(ssl_.get(), n);
  if (error == SSL_ERROR_ZERO_RETURN) return 0;
  if (error == retry) {
    errno = EAGAIN;
    return -1;
  }
  // No well-behaved client gets here. A read has to write first only if the handshake's few KB do not fit a fresh
  // socket's buffer. A write has to read first only in a renegotiation, which is off.
  failed_ = true;
  errno = ECONNABORTED;
  return -1;
}

ssize_t TlsSession::read(char* data, size_t size) {
  if (failed_) return errno = ECONNABORTED, -1;
  ERR_clear_error();
  return result(SSL_read(ssl_.get(), data, clamped(size)), SSL_ERROR_WANT_READ);
}

ssize_t TlsSession::write(const char* data, size_t size) {
  if (failed_) return errno = ECONNABORTED, -1;
  if (size == 0) return 0;
  ERR_clear_error();
  const ssize_t n = result(SSL_write(ssl_.get(), data, clamped(size)), SSL_ERROR_WANT_WRITE);
  return n == 0 ? -1 : n;
}

void TlsSession::close() {
  if (failed_ || SSL_in_init(ssl_.get()) != 0) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

TlsContext::TlsContext(std::filesystem::path certificate, std::filesystem::path key)
    : certificate_(std::move(certificate)), key_(std::move(key)), context_(load()) {}

TlsContext::Context TlsContext::load() const {
  // These checks come first, because OpenSSL does not say why a file cannot be opened, and waits for the writer of a
  // pipe.
  for (const auto& [path, what] : {std::pair{&certificate_, "certificate"}, std::pair{&key_, "key"}}) {
    const bool readable = ::access(path->c_str(), R_OK) == 0;
    if (readable && std::filesystem::is_regular_file(*path)) continue;
    const std::string why = readable ? "it is not a regular file" : std::generic_category().message(errno);
    throw TlsError(path->string() + ": the " + what + " cannot be read: " + why);
  }
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) throw TlsError("cannot set up TLS: " + last_error());
  SSL_CTX* c = context.get();
  SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
  SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Sessions are resumed by tickets, which the clients keep. An idle session holds no buffers.
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_clear_mode(c, SSL_MODE_AUTO_RETRY);  // one record at a time, so that no client keeps the thread busy
  // A key that needs a passphrase is an error; OpenSSL must not ask for it on the terminal.
  SSL_CTX_set_default_passwd_cb(c, [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_certificate_chain_file(c, certificate_.c_str()) != 1) {
    throw TlsError(certificate_.string() + ": expected a certificate (PEM), found: " + last_error());
  }
  if (SSL_CTX_use_PrivateKey_file(c, key_.c_str(), SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(c) != 1) {
    throw TlsError(key_.string() + ": expected the key of " + certificate_.string() +
                   " (PEM, without a passphrase), found: " + last_error());
  }
  return context;
}

std::unique_ptr<TlsSession> TlsContext::open(int socket) const {
  const std::lock_guard lock(mutex_);
  return std::make_unique<TlsSession>(context_.get(), socket);
}

void TlsContext::reload() {
  Context fresh = load();
  const std::lock_guard lock(mutex_);
  context_ = std::move(fresh);
}

}  // namespace smartkv::http
