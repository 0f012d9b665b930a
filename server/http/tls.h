// TLS (1.2 and 1.3) on the server's sockets, by OpenSSL. Nothing here waits: a session reads and writes what the socket
// has and has room for, so that the one thread that owns all sockets can do handshakes, too.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>

#include <openssl/ssl.h>

namespace smartkv::http {

// A certificate or key that cannot be used; the message names the file and what is wrong with it.
class TlsError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One connection. One thread at a time.
class TlsSession {
 public:
  TlsSession(SSL_CTX* context, int socket);  // `socket` does not block and stays the caller's; throws TlsError

  // As recv() and send() on the socket: bytes, 0 at the client's end, -1 with errno. EAGAIN: when the socket is readable
  // (writable), again. The handshake is part of reading. Reading takes records whole if `size` is at least kMostRead:
  // then nothing is left that the socket does not tell of.
  static constexpr size_t kMostRead = 16 << 10;  // RFC 8446, section 5.1
  ssize_t read(char* data, size_t size);
  ssize_t write(const char* data, size_t size);
  void close();  // tells the client, if that can be done at once

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  ssize_t result(int n, int retry);

  std::unique_ptr<SSL, Free> ssl_;
  bool failed_ = false;
};

// The server's side: certificate and key. Thread-safe.
class TlsContext {
 public:
  // PEM files: the certificate with those that lead to a root behind it, and its key, not encrypted. Throws TlsError.
  TlsContext(std::filesystem::path certificate, std::filesystem::path key);

  std::unique_ptr<TlsSession> open(int socket) const;  // throws TlsError
  // Reads the files again, for connections to come. Throws TlsError, and all stays as it was.
  void reload();

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  using Context = std::unique_ptr<SSL_CTX, Free>;
  Context load() const;

  std::filesystem::path certificate_, key_;
  mutable std::mutex mutex_;
  Context context_;
};

}  // namespace smartkv::http
