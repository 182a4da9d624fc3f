#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "parity/temporary_folder.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/synthetic_sample.h"
#include "vlmtrain/planner/backend.h"

namespace vlmtrain::planner {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1024 * kMiB;
/// The memory of a GPU that nothing fills.
constexpr int64_t kUnlimited = 1024 * kGiB;

inline StepConfig make_step_config(int64_t size) {
  StepConfig step_config;
  step_config.micro_batch_size = size;
  return step_config;
}

/// The model folder of a preset, without weights.
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
  return make_step_layout(step_config, expand_groups(samples));
}

inline int64_t get_bytes(const memory::ComponentBytes& bytes, memory::Component component) {
  return bytes[static_cast<size_t>(component)];
}

inline std::vector<int64_t> list_peaks(const DryRunResult& result) {
  std::vector<int64_t> peaks;
  for (const auto& step : result.steps) peaks.insert(peaks.end(), {step.allocated_bytes, step.reserved_bytes});
  return peaks;
}

inline int64_t find_max_bytes(const DryRunDetail& detail, memory::Component component) {
  int64_t most = 0;
  for (const auto& point : detail.timeline) most = std::max(most, get_bytes(point.bytes_by_component, component));
  return most;
}

constexpr int64_t kSteps = 3;

/// Dry runs of SmolVLM-256M with images of four tiles and an overview.
class DryRunTest : public testing::Test {
 protected:
  DryRunRequest request(const StepConfig& step_config, int64_t samples, int64_t steps = kSteps) const {
    return {.step_config = step_config,
            .steps = std::vector(static_cast<size_t>(steps), std::vector<SampleGroup>{{shape_, samples}}),
            .with_costs = true,
            .with_detail = true,
            .with_timeline = true};
  }

  DryRunResult dry_run(const Job& job, const StepConfig& step_config, int64_t samples,
                       const std::string& gpu = "h100") const {
    DryRunProcess process(job, {.gpu = gpu, .memory_bytes = kUnlimited});
    return process.dry_run(request(step_config, samples));
  }

  const PresetFolder model_{"smolvlm-256m"};
  const data::SampleShape shape_ = model_.shape({.images = 1, .image_width = 1024, .image_height = 1024});
};

}  // namespace vlmtrain::planner
