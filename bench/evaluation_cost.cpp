// Measures the cost of an evaluation relative to the forward pass of the same samples; prints one
// JSON line.
//
//   evaluation_cost CHECKPOINT DATA.json IMAGES [BATCH] [THREADS]
//
// forward_seconds: hidden states and loss of batches that are already decoded and collated.
// loss_seconds: evaluation::evaluate without answers, decoding included. answer_seconds: the same
// with answers of at most 8 tokens. Each is the minimum of three.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"

namespace {

using namespace vlmtrain;

double measure_min_seconds(const std::function<void()>& work) {
  double min_seconds = 1e300;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    min_seconds =
        std::min(min_seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return min_seconds;
}

void measure(const char* checkpoint, const char* data, const char* images, size_t batch_size) {
  const auto opened_records = io::open_records(data, {.image_root = images});
  const io::Records& records = *opened_records;
  const auto processor = models::load_processor(checkpoint, {});
  const auto model = models::load_model(checkpoint, at::kCPU, at::kFloat);
  std::vector<data::Sample> samples;
  for (int64_t i = 0; i < records.size(); ++i) samples.push_back(data::make_sample(*processor, records.at(i), i));
  const engine::CrossEntropyObjective objective;
  const double forward = measure_min_seconds([&] {
    const at::NoGradGuard no_gradients;
    for (std::span rest(samples); !rest.empty(); rest = rest.subspan(std::min(batch_size, rest.size()))) {
      const auto batch = data::collate(rest.first(std::min(batch_size, rest.size())));
      objective.begin_step(*model, /*normalizers=*/{1.0}, /*layout=*/{})->forward(batch).item<double>();
    }
  });
  evaluation::EvaluationSettings settings{.batch_size = static_cast<int64_t>(batch_size), .max_new_tokens = 8};
  settings.generate_answers = false;
  const double loss = measure_min_seconds([&] { evaluation::evaluate(*model, *processor, records, settings, {}); });
  settings.generate_answers = true;
  const double answers = measure_min_seconds([&] { evaluation::evaluate(*model, *processor, records, settings, {}); });
  fmt::print("{}\n", nlohmann::ordered_json{{"samples", samples.size()},
                                            {"batch_size", batch_size},
                                            {"forward_seconds", forward},
                                            {"loss_seconds", loss},
                                            {"answer_seconds", answers}}
                         .dump());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "evaluation_cost CHECKPOINT DATA.json IMAGES [BATCH] [THREADS]\n");
    return 2;
  }
  try {
    if (argc > 5) at::set_num_threads(std::atoi(argv[5]));
    measure(argv[1], argv[2], argv[3], argc > 4 ? static_cast<size_t>(std::atoi(argv[4])) : 16);
  } catch (const UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
