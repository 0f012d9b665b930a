// The socket that clients connect to.
#pragma once

#include <cstdint>
#include <string>

namespace smartkv::http {

// Binds and listens; returns a non-blocking descriptor that the caller owns. If `*port` is 0, it is set to the free
// port that was taken. Throws std::runtime_error naming host, port and reason.
int open_listening_socket(const std::string& host, int* port);

// Throws std::runtime_error if the port cannot be bound, for example because another server listens on it. Opens no
// socket that clients could reach.
void check_port(const std::string& host, int port);

// Raises the process's limit of open files to the hard limit (RLIMIT_NOFILE). Returns the limit that holds now.
int64_t raise_open_file_limit();

}  // namespace smartkv::http
