// The socket that clients connect to.
#pragma once

#include <cstdint>
#include <string>

namespace smartkv::http {

// Binds and listens, without blocking; `*port` 0 becomes the port that was free. The descriptor is the caller's. Throws
// std::runtime_error naming host, port and reason.
int open_listening_socket(const std::string& host, int* port);

// Throws std::runtime_error if another server listens on the port already. Opens no socket that clients could reach.
void check_port(const std::string& host, int port);

// Lets the process open as many files as it may (RLIMIT_NOFILE, soft to hard); returns how many those are.
int64_t raise_open_file_limit();

}  // namespace smartkv::http
