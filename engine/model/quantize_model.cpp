#include "engine/model/quantize_model.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "engine/model/llama_weights.h"
#include "engine/weights/gguf.h"
#include "engine/weights/gguf_writer.h"
#include "engine/weights/packed_integers.h"
#include "engine/weights/quantized_rows.h"
#include "kernels/task_errors.h"

namespace smartkv {
namespace {

using kernels::WeightType;

constexpr int64_t kChunk = 1024;  // rows in memory at a time

// How a tensor is written to the file.
struct Task {
  TensorView view;
  TensorType stored;    // If it is the type of the view, the bytes are copied.
  bool fitted = false;  // The weights are fitted to other integers, which loses precision.

  bool copied() const { return stored == view.type; }
  int64_t bytes() const {  // in the file
    if (copied()) return view.bytes();
    const TensorTypeInfo& info = tensor_type_info(stored);
    return view.elements() / info.block_elements * info.block_bytes;
  }
};

bool is_head(const std::string& name) {
  return name == "token_embd.weight" || name == "output.weight" || name == "model.embed_tokens.weight" ||
         name == "lm_head.weight";
}

// Routers and gates of experts, which stay as they are (llama_router_storage()).
bool is_router(const std::string& name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  return has(".ffn_gate_inp") || has(".gate.weight") || has(".router.") || has(".shared_expert_gate.");
}

// Tensors of three dimensions hold a projection of all experts.
Task plan(const TensorView& view, WeightType type) {
  if (view.shape.size() < 2 || is_router(view.name)) return {view, view.type};
  const WeightType wanted = is_head(view.name) ? llama_head_storage({type}).type : type;
  const bool kept = keeps_integers(view, {wanted});
  if (kept && view.integers == nullptr) return {view, view.type};
  // The blocks of GGUF cannot say in which order the inputs of act-order are.
  if (kept && view.integers->order.empty()) {
    return {view, view.integers->bits == 4 ? TensorType::kQ4_1 : TensorType::kQ8_0};
  }
  return {view, wanted == WeightType::kInt4 ? TensorType::kQ4_1 : TensorType::kQ8_0, true};
}

std::string one_decimal(double value) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << value;
  return text.str();
}

std::string bits(int64_t bytes, int64_t weights) {
  return one_decimal(8 * static_cast<double>(bytes) / static_cast<double>(weights));
}

// Throws ModelError if the tensors would not take less memory than those of `name`, or if a quantized tensor would be
// fitted to integers that have no more bits than it takes, and so lose precision again.
void check_gain(const std::string& name, const std::vector<Task>& tasks, WeightType type) {
  constexpr const char* kAdvice = "; serve the model as it is, quantize its original weights, or use --force";
  int64_t before = 0, after = 0, weights = 0;
  for (const Task& task : tasks) {
    before += task.view.bytes();
    after += task.bytes();
    weights += task.view.elements();
  }
  const auto size = [&](int64_t bytes) {
    return one_decimal(static_cast<double>(bytes) / 1e6) + " MB (" + bits(bytes, weights) + " bits a weight)";
  };
  if (after >= before) {
    throw ModelError(name + ": expected " + std::string(kernels::name(type)) +
                     " weights to be smaller than the present " + size(before) + ", found " + size(after) + kAdvice);
  }
  for (const Task& task : tasks) {
    const int64_t integer_bits = task.stored == TensorType::kQ8_0 ? 8 : 4;
    if (!task.fitted || is_float(task.view) || integer_bits * task.view.elements() > 8 * task.view.bytes()) continue;
    throw ModelError(
        name + ": tensor \"" + task.view.name + "\": expected F32, F16 or BF16, found " +
        std::string(tensor_type_info(task.view.type).name) + ", which would lose precision a second time in " +
        std::string(tensor_type_info(task.stored).name) + " (" + bits(task.view.bytes(), task.view.elements()) +
        " and " + bits(task.bytes(), task.view.elements()) + " bits a weight)" + kAdvice);
  }
}

class TensorWriter {
 public:
  TensorWriter(GgufWriter& file, ThreadPool& pool) : file_(file), pool_(pool) {}

  void write(const Task& task) {
    const TensorView& view = task.view;
    if (task.copied()) return file_.write(view.data);
    const int64_t rows = view.rows(), k = view.row_elements();
    const TensorTypeInfo& info = tensor_type_info(task.stored);
    const auto row_bytes = static_cast<size_t>(k / info.block_elements * info.block_bytes);
    kernels::PackedMatrix matrix = kernels::make_packed(
        task.stored == TensorType::kQ8_0 ? WeightType::kInt8 : WeightType::kInt4, std::min(rows, kChunk), k);
    std::vector<std::byte> bytes(static_cast<size_t>(matrix.out_features) * row_bytes);
    for (int64_t first = 0; first < rows; first += kChunk) {
      const int64_t count = std::min(kChunk, rows - first);
      TaskErrors errors;
      pool_.parallel_for((count + kLanes - 1) / kLanes, [&](int64_t group) {
        errors.run([&] {
          const int64_t row = group * kLanes;
          quantize(task, first + row, std::min(kLanes, count - row), matrix, group,
                   bytes.data() + static_cast<size_t>(row) * row_bytes);
        });
      });
      errors.rethrow();
      file_.write({bytes.data(), static_cast<size_t>(count) * row_bytes});
    }
  }

 private:
  // Quantizes rows [first, first + count) of the tensor and writes their blocks to `out`. Fits them in lane group
  // `group` of `matrix`, so that they get the integers that load_llama() would give them. REQUIRES: count is at most
  // kLanes.
  static void quantize(const Task& task, int64_t first, int64_t count, kernels::PackedMatrix& matrix, int64_t group,
                       std::byte* out) {
    const int64_t k = matrix.in_features;
    thread_local std::vector<float> values;
    if (task.fitted) {
      values.assign(static_cast<size_t>(kLanes * k), 0.0f);
      expand_rows(task.view, first, count, values.data());
      kernels::pack_lanes(matrix, group, values.data());
    }
    thread_local QuantizedRow row;
    for (int64_t lane = 0; lane < count; ++lane) {
      row.resize(k);
      if (task.fitted) {
        for (int64_t g = 0; g < k / kRowGroup; ++g) {
          kernels::unpack_group(matrix, group, g, lane, row.q.data() + g * kRowGroup, &row.scale[g], &row.minimum[g]);
        }
      } else {
        read_quantized_row(task.view, first + lane, row);
      }
      out = write_quantized_row(task.view.name, task.stored, row, out);
    }
  }

  GgufWriter& file_;
  ThreadPool& pool_;
};

// Options of one quantize_model() call, for files and folders alike.
struct Job {
  WeightType type;
  ThreadPool& pool;
  bool force;
  const std::function<void(double)>& progress;
};

void write_tensors(const std::string& name, const std::vector<TensorView>& tensors, const Job& job, GgufWriter& file) {
  std::vector<Task> tasks;
  int64_t total = 0, done = 0;
  for (const TensorView& view : tensors) {
    const Task& task = tasks.emplace_back(plan(view, job.type));
    if (!task.copied() && view.row_elements() % kRowGroup != 0) {
      throw ModelError("tensor \"" + view.name + "\": expected a row length that is a multiple of " +
                       std::to_string(kRowGroup) + " weights, found " + std::to_string(view.row_elements()));
    }
    file.add_tensor(view.name, task.stored, view.shape);
    total += view.elements();
  }
  if (!job.force) check_gain(name, tasks, job.type);
  file.begin();
  TensorWriter writer(file, job.pool);
  for (const Task& task : tasks) {
    try {
      writer.write(task);
    } catch (const std::invalid_argument& error) {  // Thrown by kernels, which do not know the name of the tensor.
      throw ModelError("tensor \"" + task.view.name + "\": " + error.what());
    }
    done += task.view.elements();
    if (job.progress) job.progress(static_cast<double>(done) / static_cast<double>(total));
  }
  file.end();
}

// Writes the keys by which this program and llama.cpp recognize the type of the weights in a file.
void add_type(WeightType type, GgufWriter& file) {
  file.add_string(kStoredAsKey, kernels::name(type));
  file.add_uint32("general.file_type", type == WeightType::kInt4 ? 3 : 7);  // mostly Q4_1, mostly Q8_0
  file.add_uint32("general.quantization_version", 2);
}

void quantize_gguf(const GgufFile& in, const std::filesystem::path& out, const Job& job) {
  // Keys that add_type() writes, or that are wrong for a file that is not split.
  const std::set<std::string_view> kDropped = {
      kStoredAsKey, "general.file_type", "general.quantization_version", "general.alignment",
      "split.no",   "split.count",       "split.tensors.count"};
  GgufWriter file(out);
  for (const auto& [key, value] : in.metadata()) {
    if (!kDropped.contains(key)) file.add_raw(key, in.raw(key));
  }
  add_type(job.type, file);
  std::vector<TensorView> tensors;
  for (const auto& [name, view] : in.tensors()) tensors.push_back(view);
  write_tensors(in.name(), tensors, job, file);
}

// Copies the files that load_tokenizer(), load_chat_templates() and the sampling defaults read.
void copy_texts(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "added_tokens.json",
                           "special_tokens_map.json", "chat_template.jinja", "generation_config.json"}) {
    if (std::filesystem::exists(from / name)) std::filesystem::copy_file(from / name, to / name);
  }
  const char* const kTemplates = "additional_chat_templates";
  if (!std::filesystem::is_directory(from / kTemplates)) return;
  std::filesystem::create_directory(to / kTemplates);
  for (const auto& entry : std::filesystem::directory_iterator(from / kTemplates)) {
    if (entry.path().extension() == ".jinja")
      std::filesystem::copy_file(entry.path(), to / kTemplates / entry.path().filename());
  }
}

void quantize_folder(const Weights& in, const std::filesystem::path& from, const std::filesystem::path& to,
                     const Job& job) {
  std::filesystem::create_directories(to);
  copy_texts(from, to);
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(std::ifstream(from / "config.json"));
  config.erase("quantization_config");
  std::ofstream text(to / "config.json");
  if (!(text << config.dump(2) << '\n').flush())
    throw ModelError((to / "config.json").string() + ": cannot be written");
  GgufWriter file(to / "model.gguf");
  add_type(job.type, file);
  std::vector<TensorView> tensors;
  for (const std::string& name : in.names()) tensors.push_back(*in.find(name));
  write_tensors(in.config().name, tensors, job, file);
}

}  // namespace

void quantize_model(const std::filesystem::path& in, const std::filesystem::path& out, WeightType type,
                    ThreadPool& pool, bool force, const std::function<void(double)>& progress) {
  if (type != WeightType::kInt4 && type != WeightType::kInt8) {
    throw std::invalid_argument("quantize_model: expected int4 or int8, found " + std::string(kernels::name(type)));
  }
  if (std::filesystem::exists(out)) throw ModelError(out.string() + ": already exists");
  const std::unique_ptr<Weights> weights = Weights::open(in);
  if (weights->gguf() != nullptr && out.extension() != ".gguf") {
    throw ModelError(out.string() + ": expected a name that ends in .gguf, because the model is a GGUF file");
  }
  const std::filesystem::path target = out.has_filename() ? out : out.parent_path();  // "folder/" is "folder"
  const std::filesystem::path part = target.string() + ".part-" + std::to_string(::getpid());
  const Job job{type, pool, force, progress};
  try {
    if (weights->gguf() != nullptr) {
      quantize_gguf(*weights->gguf(), part, job);
    } else {
      quantize_folder(*weights, in, part, job);
    }
    if (std::filesystem::exists(target)) throw ModelError(target.string() + ": already exists");
    std::filesystem::rename(part, target);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(part, ignored);
    throw;
  }
}

}  // namespace smartkv
