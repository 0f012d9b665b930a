// TLS 1.2 and 1.3 on the server's sockets, by OpenSSL. Nothing here waits: a session reads the bytes that the socket
// has and writes the bytes that it has room for. So the one thread that owns all sockets can also do the handshakes.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>

#include <openssl/ssl.h>

namespace smartkv::http {

// A certificate or key that cannot be used. The message names the file and the fault.
class TlsError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The TLS session of one connection. Used by one thread at a time.
class TlsSession {
 public:
  // `socket` must be non-blocking; the caller keeps its ownership. Throws TlsError.
  TlsSession(SSL_CTX* context, int socket);

  // Like recv() and send() on the socket: they return a number of bytes, 0 when the client has closed, or -1 with
  // errno. EAGAIN means: call again when the socket is readable (for read()) or writable (for write()). Reading also
  // does the handshake. With a `size` of at least kMostRead, read() takes whole records, so no byte stays in the
  // session while the socket is not readable.
  static constexpr size_t kMostRead = 16 << 10;  // the largest record: RFC 8446, section 5.1
  ssize_t read(char* data, size_t size);
  ssize_t write(const char* data, size_t size);
  void close();  // tells the client that the session ends, if that is possible without waiting

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  ssize_t result(int n, int retry);

  std::unique_ptr<SSL, Free> ssl_;
  bool failed_ = false;
};

// The server's certificate and key. Thread-safe.
class TlsContext {
 public:
  // Both are PEM files: the certificate followed by its chain, and its unencrypted key. Throws TlsError.
  TlsContext(std::filesystem::path certificate, std::filesystem::path key);

  std::unique_ptr<TlsSession> open(int socket) const;  // begins a session on `socket`; throws TlsError
  // Reads the files again, for future connections. If it throws TlsError, nothing changes.
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
