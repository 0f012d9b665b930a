// Messages to a service manager such as systemd. The protocol is that of sd_notify(3): datagrams to the socket in
// $NOTIFY_SOCKET.
#pragma once

#include <string>

namespace smartkv {

// Sends lines such as "READY=1\nSTATUS=Serving". Does nothing without $NOTIFY_SOCKET. It never waits: a message is lost
// if the manager does not read it in time. A socket that cannot be used is logged.
void notify_service_manager(const std::string& lines);

// Returns the lines that begin a reload: RELOADING=1 and the monotonic time, which Type=notify-reload requires. READY=1
// ends the reload.
std::string reloading_lines();

}  // namespace smartkv
