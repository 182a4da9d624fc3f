// Reads global batches from a data set like a training run (decode, resize, tokenize on loader
// threads; collate on the caller's thread) and prints the speed as JSON. bench/images_per_second.py
// makes the data and runs it.
//
//   load_samples bytes|floats CHECKPOINT DATA IMAGE_ROOT WORKERS BATCH BATCHES
//
// bytes: pixels as training copies them to the device, which normalizes them. floats: the threads
// normalize them too, like loaders in Python.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "vlmtrain/data/loader/loader.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"

namespace {

using namespace vlmtrain;

double resident_mb(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1000;
  }
  return 0;
}

/// A processor whose pixels are fp32.
class NormalizingProcessor final : public data::SampleProcessor {
 public:
  explicit NormalizingProcessor(const data::SampleProcessor& processor) : processor_(processor) {}

  data::Sample process(const io::Record& record, int64_t index) const override {
    data::Sample sample = processor_.process(record, index);
    if (sample.pixel_values.defined()) sample.pixel_values = sample.pixel_values.to(at::kFloat).sub_(116).div_(68);
    return sample;
  }
  data::Sample process_headers(const io::Record& record, int64_t index) const override {
    return processor_.process_headers(record, index);
  }

 private:
  const data::SampleProcessor& processor_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    fmt::print(stderr, "load_samples bytes|floats CHECKPOINT DATA IMAGE_ROOT WORKERS BATCH BATCHES\n");
    return 2;
  }
  at::set_num_threads(1);
  const auto processor = models::load_processor(argv[2], {});
  const NormalizingProcessor normalizing_processor(*processor);
  const bool use_floats = std::string(argv[1]) == "floats";
  const auto records = io::open_records(argv[3], {.image_root = argv[4]});
  const data::SampleOrder order(records->size(), /*seed=*/0);
  data::Ledger ledger(argv[3], records->size());
  const int64_t batches = std::stol(argv[7]);
  const double initial_mb = resident_mb("VmRSS");

  const auto start = std::chrono::steady_clock::now();
  data::Loader loader(*records,
                      use_floats ? normalizing_processor : static_cast<const data::SampleProcessor&>(*processor), order,
                      {.global_batch_size = std::stol(argv[6]), .num_workers = std::stol(argv[5])}, {}, ledger);
  int64_t images = 0;
  int64_t tokens = 0;
  double checksum = 0;
  std::vector<double> resident;
  for (int64_t i = 0; i < batches; ++i) {
    const auto batch = loader.next();
    const auto collated = data::collate(batch.samples);
    images += collated.num_media;
    tokens += collated.tokens();
    checksum += collated.pixel_values.flatten()[0].item<double>();
    if (i % std::max<int64_t>(1, batches / 10) == 0) resident.push_back(resident_mb("VmRSS"));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(
      "{{\"images\": {}, \"tokens\": {}, \"seconds\": {}, \"checksum\": {}, \"before_mb\": {}, \"resident_mb\": [{}], "
      "\"most_mb\": {}}}\n",
      images, tokens, seconds, checksum, initial_mb, fmt::join(resident, ", "), resident_mb("VmHWM"));
  return 0;
}
