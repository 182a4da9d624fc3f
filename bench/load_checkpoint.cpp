// Loads the model of a checkpoint and prints one JSON line: seconds, bytes of weights, and the peak
// resident memory. bench/loading.py compares it with transformers.
//
//   load_checkpoint CHECKPOINT [fp32 | bf16]

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace {

using namespace vlmtrain;

int64_t peak_resident_bytes() {
  // getrusage would include the parent's memory at the time of the fork.
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    int64_t kibibytes = 0;
    status >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

void load(const char* checkpoint, at::ScalarType dtype) {
  const auto start = std::chrono::steady_clock::now();
  const auto model = models::build_model(checkpoint, at::kCPU, dtype);
  models::load_weights(*model, checkpoint);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  int64_t weights_bytes = 0;
  for (const auto& parameter : model->parameters().all()) {
    weights_bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  }
  fmt::print("{}\n", nlohmann::json{{"seconds", seconds.count()},
                                    {"weights_bytes", weights_bytes},
                                    {"peak_resident_bytes", peak_resident_bytes()}}
                         .dump());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "load_checkpoint CHECKPOINT [fp32 | bf16]\n");
    return 2;
  }
  try {
    load(argv[1], argc == 3 && std::string_view(argv[2]) == "bf16" ? at::kBFloat16 : at::kFloat);
  } catch (const UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
