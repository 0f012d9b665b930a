#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>

#include "engine/model/quantize_model.h"
#include "engine/system_resources.h"
#include "engine/weights/weights.h"
#include "server/commands/command.h"
#include "server/commands/enum_flag.h"
#include "server/commands/hub_models.h"
#include "server/commands/number_flag.h"

namespace smartkv {
namespace {

struct QuantizeArguments {
  std::string in, out;
  WeightFormat weights = WeightFormat::kInt8;
  int threads = 0;
  bool force = false;
};

double gibibytes(const Weights& weights) {
  double bytes = 0;
  for (const std::string& name : weights.names()) bytes += static_cast<double>(weights.find(name)->bytes());
  return bytes / (1 << 30);
}

int quantize(const QuantizeArguments& arguments) {
  ThreadPool pool(arguments.threads > 0 ? arguments.threads : available_cores());
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  const auto start = std::chrono::steady_clock::now();
  const bool int4 = arguments.weights == WeightFormat::kInt4;
  const auto type = int4 ? kernels::WeightType::kInt4 : kernels::WeightType::kInt8;
  const std::filesystem::path in = find_model(arguments.in);
  quantize_model(in, arguments.out, type, pool, arguments.force, [&](double done) {
    if (terminal) std::cerr << "\r\033[K" << static_cast<int>(100 * done) << "%" << std::flush;
  });
  if (terminal) std::cerr << "\r\033[K";
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << arguments.out << ": " << std::fixed << std::setprecision(2) << gibibytes(*Weights::open(arguments.out))
            << " GiB of weights instead of " << gibibytes(*Weights::open(in)) << ", in " << std::setprecision(1)
            << seconds.count() << " s\n";
  return kOk;
}

constexpr const char* kQuantizeExamples =
    R"(A GGUF file becomes a GGUF file, a folder becomes a folder; --model accepts both.
The output is served with these weights unless --weights says otherwise, and answers like the original with --weights
int4 or int8.
The command refuses to write a file that is not smaller, and to quantize tensors that are already quantized. Serve such
models as they are: --weights auto keeps their integers.
Examples:
  smartkv quantize model.gguf model-int4.gguf --weights int4
  smartkv quantize folder/ folder-int8/ --weights int8)";

}  // namespace

std::function<int()> setup_quantize(CLI::App& app) {
  auto arguments = std::make_shared<QuantizeArguments>();
  app.add_option("in", arguments->in, "GGUF file, Hugging Face folder or name (ORG/NAME)")->required();
  app.add_option("out", arguments->out, "File or folder to write")->required();
  add_enum_flag(app, "--weights", arguments->weights, "Storage of the weights",
                {WeightFormat::kInt8, WeightFormat::kInt4})
      ->required()
      ->default_str("");
  add_number_flag(app, "--threads", arguments->threads, "CPU threads; 0 uses every core available to this process", 0,
                  64);
  app.add_flag("--force", arguments->force,
               "Write the file even if it is not smaller, or if tensors are quantized a second time");
  app.footer(kQuantizeExamples);
  return [arguments] { return quantize(*arguments); };
}

}  // namespace smartkv
