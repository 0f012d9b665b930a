#include "server/commands/command.h"

int main(int argc, char** argv) { return smartkv::run_command_line(argc, argv); }
