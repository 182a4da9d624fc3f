#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/small_step.h"
#include "parity/case.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain {

/// Settings of a small run with the model of a parity case.
struct SmallRunSettings {
  std::string parity_case = "mixed_batch";
  at::ScalarType dtype = at::kBFloat16;
  bool recompute = false;
  bool keep_attention = false;  ///< in recomputed blocks
  int64_t micro_batch_size = 2;
  int64_t repeats = 1;  ///< of the case's samples
  std::optional<nn::LoraSettings> lora = std::nullopt;
  nn::Quantization quantization = nn::Quantization::kNone;
  nn::MemoryPlacement per_layer_tables = nn::MemoryPlacement::kDevice;
  bool frozen_tower = false;
  engine::OptimizerStateDtype states = engine::OptimizerStateDtype::kFp32;
  engine::TaskSettings tasks = {};  ///< the samples belong to the tasks in turn
  engine::OptimizerKind optimizer = engine::OptimizerKind::kAdamW;
  engine::Offload offload = engine::Offload::kNone;
  bool offload_activations = false;
};

/// A model on the virtual GPU and the global batch that each step trains on.
class SmallRun {
 public:
  explicit SmallRun(const SmallRunSettings& settings)
      : step_{.micro_batch_size = settings.micro_batch_size, .tasks = settings.tasks} {
    const at::Device device = memory::open_device("cuda");
    const parity::Case reference(settings.parity_case);
    for (int64_t i = 0; i < settings.repeats; ++i) {
      for (auto& sample : reference.samples()) samples_.push_back(std::move(sample));
    }
    for (size_t i = 0; settings.tasks.is_multi_task() && i < samples_.size(); ++i) {
      samples_[i].task_index = static_cast<int64_t>(i) % settings.tasks.num_tasks;
    }
    model_ = models::build_model(
        reference.checkpoint(), device, settings.dtype, settings.lora, settings.quantization,
        /*shard=*/{}, settings.per_layer_tables,
        engine::offloads_weights(settings.offload) ? nn::MemoryPlacement::kHost : nn::MemoryPlacement::kDevice);
    models::load_weights(*model_, reference.checkpoint());
    models::initialize_adapter(*model_, /*seed=*/0);
    if (settings.frozen_tower) models::freeze_parts(*model_, {.vision_tower = true});
    if (settings.recompute) {
      model_->set_recompute_block_counts(
          {.vision = model_->num_vision_blocks(),
           .language = model_->num_language_blocks(),
           .language_selective = settings.keep_attention ? model_->num_language_blocks() : 0});
    }
    std::optional<engine::LossScaleSettings> loss_scale;
    if (settings.dtype == at::kHalf) loss_scale.emplace();
    training_ = std::make_unique<engine::TrainingState>(
        *model_,
        engine::OptimizerSettings{
            .kind = settings.optimizer, .weight_decay = 0.1, .loss_scale = loss_scale, .state_dtype = settings.states},
        engine::CrossEntropyObjective(settings.tasks).num_gradient_groups(), engine::Shard{},
        engine::HostMemorySettings{.offload = settings.offload, .offloads_activations = settings.offload_activations});
  }

  int64_t num_micro_batches() const { return step_.make_layout(*model_, samples_).split.num_micro_batches(); }

  engine::StepResult step() { return engine::run_optimizer_step(*training_, samples_, kRates, step_); }

  models::VisionLanguageModel& model() { return *model_; }
  const models::VisionLanguageModel& model() const { return *model_; }
  engine::TrainingState& training() { return *training_; }
  const std::vector<data::Sample>& samples() const { return samples_; }

  /// Runs a step except for its last half.
  engine::OptimizerUpdate prepare() {
    const auto result = engine::accumulate_gradients(*model_, samples_, step_, training_->optimizer.loss_scale(),
                                                     &training_->gradient_buckets);
    return training_->optimizer.prepare(result.loss);
  }

  void apply(const engine::OptimizerUpdate& update) { training_->optimizer.apply_update(update, kRates); }

 private:
  static constexpr engine::LearningRates kRates{1e-4, 1e-4, 1e-4};

  engine::SmallStep step_;
  std::vector<data::Sample> samples_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::TrainingState> training_;
};

}  // namespace vlmtrain
