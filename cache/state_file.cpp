#include "cache/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <xxhash.h>

#include "cache/state_io.h"

namespace smartkv {
namespace {

constexpr char kMagic[] = {'S', 'm', 'a', 'r', 't', 'K', 'V', '\n'};
constexpr uint32_t kVersion = 3;
constexpr uint32_t kMostHeader = uint32_t{1} << 28;
constexpr std::string_view kSuffix = ".kv", kPartSuffix = ".part";
constexpr size_t kStateDigits = 32, kFileDigits = 16;
constexpr size_t kTokenChunk = 512;  // tokens that are stored as one page

std::string hex(uint64_t value) {
  std::string digits;
  for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[value >> shift & 15];
  return digits;
}

bool all_of(std::string_view text, std::string_view characters) {
  return text.find_first_not_of(characters) == std::string_view::npos;
}

void write_text(StateWriter* out, const std::string& text) { out->values(std::vector<char>(text.begin(), text.end())); }

std::string read_text(StateReader* in) {
  const std::vector<char> text = in->values<char>();
  return {text.begin(), text.end()};
}

template <typename In, typename Fields>
void visit_numbers(In* io, Fields& header) {
  io->fields(header.record.committed, header.record.own_bytes, header.token_bytes, header.state_bytes,
             header.token_checksum, header.checksum, header.page_offsets, header.page_bytes, header.data_bytes,
             header.data_checksum);
}

// Throws CacheError unless all ranges lie in the data that they name, as far as this file tells, and make up the state.
void check_ranges(const StateHeader& header) {
  int64_t left = header.token_bytes;
  const auto expect = [](bool holds) {
    if (!holds) throw CacheError("its ranges do not make up a state");
  };
  expect(header.token_bytes >= 0 && header.state_bytes >= 0 && header.data_bytes >= 0 &&
         !__builtin_add_overflow(left, header.state_bytes, &left));
  for (const StateRange& range : header.ranges) {
    expect(range.file >= 0 && range.file <= static_cast<int64_t>(header.needs.size()) && range.offset >= 0 &&
           range.bytes > 0 && range.bytes <= left);
    if (range.file == 0) expect(range.offset <= header.data_bytes - range.bytes);
    left -= range.bytes;
  }
  expect(left == 0 && header.pages.size() == header.page_offsets.size() &&
         header.pages.size() == header.page_bytes.size());
  for (size_t i = 0; i < header.pages.size(); ++i) {
    expect(header.page_bytes[i] > 0 && header.page_bytes[i] <= header.data_bytes && header.page_offsets[i] >= 0 &&
           header.page_offsets[i] <= header.data_bytes - header.page_bytes[i]);
  }
}

}  // namespace

PageName page_name(std::string_view page) {
  const XXH128_hash_t hash = XXH3_128bits(page.data(), page.size());
  return {hash.high64, hash.low64};
}

uint64_t state_checksum(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string state_name(const std::string& identity, const PrefixRecord& record) {
  StateWriter text;
  write_text(&text, identity);
  write_text(&text, record.key);
  text.values(record.tokens);
  const PageName name = page_name(text.data());
  return hex(name.high) + hex(name.low);
}

std::string state_file_name(const std::string& state, uint64_t header_checksum) {
  return state + "." + hex(header_checksum) + std::string(kSuffix);
}

bool is_state_file_name(std::string_view name) {
  if (!name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  const bool whole = name.size() == kStateDigits + 1 + kFileDigits && name[kStateDigits] == '.';
  return (whole || name.size() == kStateDigits) && all_of(name.substr(0, kStateDigits), "0123456789abcdef") &&
         all_of(name.substr(std::min(name.size(), kStateDigits + 1)), "0123456789abcdef");
}

bool is_part_name(std::string_view name) {
  if (!name.ends_with(kPartSuffix)) return false;
  name.remove_suffix(kPartSuffix.size());
  const size_t dot = name.rfind('.');
  return dot != std::string_view::npos && dot + 1 < name.size() && all_of(name.substr(dot + 1), "0123456789") &&
         is_state_file_name(name.substr(0, dot));
}

std::string state_of_file(std::string_view file_name) { return std::string(file_name.substr(0, kStateDigits)); }

Descriptor open_state_file(const std::filesystem::path& path, int64_t* bytes) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return Descriptor(-1);
  *bytes = info.st_size;
  return fd;
}

std::string encode_header(const StateHeader& header, uint64_t* checksum) {
  StateWriter body;
  write_text(&body, header.identity);
  write_text(&body, header.record.key);
  visit_numbers(&body, header);
  body.value(static_cast<int64_t>(header.needs.size()));
  for (const std::string& file : header.needs) write_text(&body, file);
  body.values(header.ranges);
  body.values(header.pages);
  StateWriter out;
  out.bytes(kMagic, sizeof(kMagic));
  out.value(kVersion);
  out.value(static_cast<uint32_t>(body.data().size()));
  out.bytes(body.data().data(), body.data().size());
  *checksum = state_checksum(out.data());
  out.value(*checksum);
  return out.data();
}

StateHeader read_header(int fd, int64_t file_bytes) {
  constexpr size_t kStart = sizeof(kMagic) + 2 * sizeof(uint32_t);
  const auto truncated = [] { return CacheError("the file is truncated"); };
  std::string text(kStart, '\0');
  if (!read_all_at(fd, text.data(), kStart, 0)) throw truncated();
  if (std::memcmp(text.data(), kMagic, sizeof(kMagic)) != 0) throw CacheError("it is not a SmartKV state file");
  uint32_t version = 0, bytes = 0;
  std::memcpy(&version, text.data() + sizeof(kMagic), sizeof(version));
  std::memcpy(&bytes, text.data() + sizeof(kMagic) + sizeof(version), sizeof(bytes));
  if (version != kVersion) {
    throw CacheError("expected version " + std::to_string(kVersion) + ", found " + std::to_string(version));
  }
  const auto data_begin = static_cast<int64_t>(kStart + bytes + sizeof(uint64_t));
  if (bytes > kMostHeader || data_begin > file_bytes) throw truncated();
  text.resize(static_cast<size_t>(data_begin));
  if (!read_all_at(fd, text.data(), data_begin, 0)) throw truncated();
  uint64_t found = 0;
  std::memcpy(&found, text.data() + kStart + bytes, sizeof(found));
  text.resize(kStart + bytes);
  if (found != state_checksum(text)) throw CacheError("the header's checksum is wrong");

  StateReader in(std::span<const char>(text).subspan(kStart));
  StateHeader header;
  header.identity = read_text(&in);
  header.record.key = read_text(&in);
  visit_numbers(&in, header);
  const auto needs = in.value<int64_t>();
  for (int64_t i = 0; i < needs; ++i) {
    header.needs.push_back(read_text(&in));
    if (!is_state_file_name(header.needs.back())) throw CacheError("it needs a file whose name is not that of a state");
  }
  header.ranges = in.values<StateRange>();
  header.pages = in.values<PageName>();
  header.data_begin = data_begin;
  check_ranges(header);
  if (data_begin + header.data_bytes != file_bytes) {
    throw CacheError("expected " + std::to_string(data_begin + header.data_bytes) + " bytes, found " +
                     std::to_string(file_bytes));
  }
  return header;
}

void write_tokens(const std::vector<int32_t>& tokens, StateWriter* out) {
  for (size_t at = 0; at < tokens.size(); at += kTokenChunk) {
    const size_t bytes = std::min(kTokenChunk, tokens.size() - at) * sizeof(int32_t);
    std::memcpy(out->page(bytes), tokens.data() + at, bytes);
  }
}

}  // namespace smartkv
