#include "engine/weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "engine/weights/weights.h"

namespace smartkv {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation

// Returns the type of a dtype. The format has only plain numbers.
std::optional<TensorType> tensor_type(const std::string& dtype) {
  for (const TensorTypeInfo& info : tensor_types()) {
    if (info.name == dtype && info.block_elements == 1 && info.block_bytes > 0) return info.type;
  }
  return std::nullopt;
}

// Parses the header. Throws ModelError if it is not a JSON object, or if a key occurs twice in one object.
nlohmann::json parse_header(std::string_view text, const std::string& name) {
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto callback = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(value.get<std::string>()).second)
      duplicate = value.get<std::string>();
    return true;
  };
  nlohmann::json header;
  try {
    header = nlohmann::json::parse(text, callback);
  } catch (const nlohmann::json::exception& error) {
    throw ModelError(name + ": the header is not JSON: " + error.what());
  }
  if (!duplicate.empty()) throw ModelError(name + ": key \"" + duplicate + "\" appears twice");
  if (!header.is_object()) throw ModelError(name + ": expected the header to be an object");
  return header;
}

std::optional<uint64_t> unsigned_value(const nlohmann::json& value) {
  return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
}

// A tensor with its range of bytes in the data of the file.
struct Pending {
  TensorView view;
  uint64_t begin, end;
};

Pending read_entry(const std::string& tensor_name, const nlohmann::json& entry, uint64_t data_bytes,
                   const std::string& file) {
  const auto fail = [&](const std::string& message) -> void {
    throw ModelError(file + ": tensor \"" + tensor_name + "\": " + message);
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    fail("expected dtype, shape and data_offsets, found " + entry.dump().substr(0, 100));
  }
  Pending pending;
  pending.view.name = tensor_name;
  const std::optional<TensorType> type = entry["dtype"].is_string() ? tensor_type(entry["dtype"]) : std::nullopt;
  if (!type) fail("dtype: expected F32, F16, BF16, F8_E4M3, F8_E5M2, I32 or U8, found " + entry["dtype"].dump());
  pending.view.type = *type;
  if (!entry["shape"].is_array()) fail("shape: expected an array, found " + entry["shape"].dump());
  uint64_t elements = 1;
  for (const nlohmann::json& extent : entry["shape"]) {
    const std::optional<uint64_t> n = unsigned_value(extent);
    if (!n || (*n > 0 && elements > (uint64_t{1} << 40) / *n))
      fail("shape: " + entry["shape"].dump() + " is out of range");
    elements *= *n;
    pending.view.shape.push_back(static_cast<int64_t>(*n));
  }
  const nlohmann::json& offsets = entry["data_offsets"];
  const auto begin = offsets.is_array() && offsets.size() == 2 ? unsigned_value(offsets[0]) : std::nullopt;
  const auto end = begin ? unsigned_value(offsets[1]) : std::nullopt;
  if (!begin || !end || *begin > *end || *end > data_bytes) {
    fail("data_offsets: expected a range in [0, " + std::to_string(data_bytes) + "], found " + offsets.dump());
  }
  const uint64_t expected = elements * static_cast<uint64_t>(tensor_type_info(*type).block_bytes);
  if (*end - *begin != expected) {
    fail("data_offsets: expected " + std::to_string(expected) + " bytes for its shape, found " +
         std::to_string(*end - *begin));
  }
  pending.begin = *begin;
  pending.end = *end;
  return pending;
}

uint16_t f16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // Rounds to infinity.
  if (magnitude < 0x38800000u) {                                               // Subnormal: a multiple of 2^-24.
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    const uint32_t whole = static_cast<uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(whole);
    return static_cast<uint16_t>(sign | (whole + (rest > 0.5f || (rest == 0.5f && whole % 2 == 1) ? 1u : 0u)));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

uint16_t bf16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  MappedFile file(path);
  SafetensorsFile parsed = parse(file.bytes(), path.filename().string());
  parsed.file_ = std::move(file);
  return parsed;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) {
    throw ModelError(name + ": truncated: expected 8 bytes of header length, found " + std::to_string(bytes.size()));
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - 8) {
    throw ModelError(name + ": a header of " + std::to_string(header_bytes) + " bytes does not fit into the file's " +
                     std::to_string(bytes.size()));
  }
  const nlohmann::json header =
      parse_header({reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<size_t>(header_bytes)}, name);
  const std::span<const std::byte> data = bytes.subspan(8 + static_cast<size_t>(header_bytes));

  SafetensorsFile file;
  std::vector<Pending> pending;
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      for (const auto& [k, v] : entry.items()) {
        if (!v.is_string()) throw ModelError(name + ": __metadata__." + k + ": expected a string, found " + v.dump());
        file.metadata_[k] = v.get<std::string>();
      }
    } else {
      pending.push_back(read_entry(key, entry, data.size(), name));
    }
  }
  std::sort(pending.begin(), pending.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < pending.size(); ++i) {
    if (pending[i].begin < pending[i - 1].end) {
      throw ModelError(name + ": tensor \"" + pending[i].view.name + "\" overlaps tensor \"" +
                       pending[i - 1].view.name + "\"");
    }
  }
  for (Pending& tensor : pending) {
    tensor.view.data = data.subspan(static_cast<size_t>(tensor.begin), static_cast<size_t>(tensor.end - tensor.begin));
    std::string key = tensor.view.name;
    file.tensors_.emplace(std::move(key), std::move(tensor.view));
  }
  return file;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors, TensorType type,
                       const std::map<std::string, std::string>& metadata) {
  const int64_t element = tensor_type_info(type).block_bytes;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    const int64_t end = offset + static_cast<int64_t>(tensor.values.size()) * element;
    header[tensor.name] = {
        {"dtype", tensor_type_info(type).name}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // Tensors begin at a multiple of 8.
  std::ofstream out(path, std::ios::binary);
  const uint64_t length = text.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const NamedTensor& tensor : tensors) {
    if (type == TensorType::kF32) {
      out.write(reinterpret_cast<const char*>(tensor.values.data()),
                static_cast<std::streamsize>(tensor.values.size() * sizeof(float)));
      continue;
    }
    std::vector<uint16_t> bits(tensor.values.size());
    std::transform(tensor.values.begin(), tensor.values.end(), bits.begin(),
                   type == TensorType::kF16 ? f16_bits : bf16_bits);
    out.write(reinterpret_cast<const char*>(bits.data()), static_cast<std::streamsize>(bits.size() * sizeof(uint16_t)));
  }
  if (!out.flush()) throw ModelError(path.string() + ": cannot be written");
}

}  // namespace smartkv
