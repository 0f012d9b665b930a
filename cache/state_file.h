// A file of the prefix cache's directory: the part of a state that no other file had when it was written.
//
// Format, little endian, with 64-bit XXH3 checksums:
//  - "SmartKV\n", u32 version, u32 size of the header in bytes;
//  - the header;
//  - u64 checksum of everything so far;
//  - the data: bytes of states, pages among them.
//
// A state is a list of ranges of the data of files. It begins with its tokens; what SequenceCache::save() wrote
// follows. Each file has one state, and pages to which later files may refer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cache/descriptor.h"

namespace smartkv {

// Description of a state that is not in memory, as the prefix cache needs it.
struct PrefixRecord {
  std::string key;
  std::vector<int32_t> tokens;
  // Committed tokens. The state cannot be cut back to fewer.
  int64_t committed = 0;
  // Bytes of memory that the state takes once it is loaded.
  int64_t own_bytes = 0;
};

// The hash of a page's content.
struct PageName {
  uint64_t high = 0, low = 0;
  bool operator==(const PageName&) const = default;
};
struct PageNameHash {
  size_t operator()(const PageName& name) const { return static_cast<size_t>(name.low); }
};
PageName page_name(std::string_view page);
uint64_t state_checksum(std::string_view bytes);

// A range of the data of a file: of the state's own file if `file` is 0, else of needs[file - 1].
struct StateRange {
  int64_t file = 0, offset = 0, bytes = 0;
};

struct StateHeader {
  std::string identity;  // everything that a state depends on besides its key: model, program, kind of machine
  PrefixRecord record;   // without the tokens, which are in the data
  int64_t token_bytes = 0, state_bytes = 0;
  uint64_t token_checksum = 0, checksum = 0;  // of the tokens and of the rest of the state
  std::vector<std::string> needs;             // names of other files
  std::vector<StateRange> ranges;             // in the order of the state
  // Pages in the file's own data.
  std::vector<PageName> pages;
  std::vector<int64_t> page_offsets, page_bytes;
  int64_t data_bytes = 0;
  uint64_t data_checksum = 0;
  int64_t data_begin = 0;  // not stored: where the data begins in the file
};

// Returns the name of a state: 32 hexadecimal digits.
std::string state_name(const std::string& identity, const PrefixRecord& record);
// Returns the name of a file for a state: no two contents have the same.
std::string state_file_name(const std::string& state, uint64_t header_checksum);
bool is_state_file_name(std::string_view name);  // also of earlier versions
// Returns whether this is the name of a file that some process is writing: NAME.PID.part.
bool is_part_name(std::string_view name);
std::string state_of_file(std::string_view file_name);

// Opens a regular file for reading and sets *bytes to its size.
Descriptor open_state_file(const std::filesystem::path& path, int64_t* bytes);

// Returns everything in front of the data. *checksum receives the checksum in it.
std::string encode_header(const StateHeader& header, uint64_t* checksum);
// Reads what encode_header() returned. Throws CacheError if the file is damaged or of another version.
StateHeader read_header(int fd, int64_t file_bytes);

// Writes tokens in chunks that states of the same conversation share.
class StateWriter;
void write_tokens(const std::vector<int32_t>& tokens, StateWriter* out);

}  // namespace smartkv
