#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "parity/temporary_folder.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/hypothetical_sample.h"
#include "vlmtrain/planner/dry_run_process.h"

namespace vlmtrain::planner {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1024 * kMiB;
/// A card that nothing fills.
constexpr int64_t kUnlimited = 1024 * kGiB;

inline StepConfig make_step_config(int64_t size) {
  StepConfig step_config;
  step_config.micro_batch_size = size;
  return step_config;
}

/// The model of a preset, without weights.
class PresetFolder {
 public:
  explicit PresetFolder(const std::string& preset) { models::write_preset_config(preset, folder_.path()); }

  const std::filesystem::path& path() const { return folder_.path(); }
  Job job() const {
    Job job;
    job.model = path();
    return job;
  }
  data::SampleShape shape(const models::SyntheticSample& sample) const {
    return models::compute_sample_shape(path(), sample);
  }

 private:
  parity::TemporaryFolder folder_;
};

/// The plan's layout of these samples.
inline engine::StepLayout make_step_layout(const StepConfig& step_config, const std::vector<SampleGroup>& samples) {
  return make_step_layout(step_config, expand_samples(samples));
}

inline int64_t get_bytes(const memory::ComponentBytes& bytes, memory::Component component) {
  return bytes[static_cast<size_t>(component)];
}

inline std::vector<int64_t> list_peaks(const DryRunResult& result) {
  std::vector<int64_t> peaks;
  for (const auto& step : result.steps) peaks.insert(peaks.end(), {step.allocated_bytes, step.reserved_bytes});
  return peaks;
}

}  // namespace vlmtrain::planner
