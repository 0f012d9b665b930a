// What a service manager such as systemd is told: the protocol of sd_notify(3), datagrams to the socket in $NOTIFY_SOCKET.
#pragma once

#include <string>

namespace smartkv {

// Sends lines such as "READY=1\nSTATUS=Serving". Does nothing without $NOTIFY_SOCKET, and never waits: a manager that does not
// listen loses the message. Logs a socket that cannot be used.
void notify_service_manager(const std::string& lines);

// Returns the lines that begin a reload: RELOADING=1 with the monotonic time, which Type=notify-reload asks for. READY=1 ends it.
std::string reloading_lines();

}  // namespace smartkv
