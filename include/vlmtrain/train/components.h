#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/loader.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/nn/lora_settings.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// What a configuration means for the parts of a run. All throw UserError.

/// A source of data.train, and the places of its records that are held out of training.
struct SourceSplit {
  std::string path;
  std::shared_ptr<const io::Records> records;
  std::vector<int64_t> held_out;
};

/// The records of data.train, without those that data.eval holds out of it; and of data.eval. Relative paths in them
/// start from data.image_root, which is the folder of the file that names them unless it is set. Throws UserError
/// (kBadData) where there are none.
/// `source_splits`: gets the sources of which a share is held out.
std::shared_ptr<const data::DataSet> open_training_records(const Config& config,
                                                           std::vector<SourceSplit>* source_splits = nullptr);
std::shared_ptr<const io::Records> open_evaluation_records(const Config& config);
std::shared_ptr<const io::Records> read_records(const std::filesystem::path& path, const io::RecordSettings& settings);
io::RecordSettings make_record_settings(const data::DataOptions& data);

/// `adapter`: one that training goes on with, whose chat template is then the checkpoint's own.
models::ProcessorSettings make_processor_settings(const data::DataOptions& data,
                                                  const std::filesystem::path& adapter = {});

data::LoaderSettings make_loader_settings(const Config& config);
/// The adapters of a run: those of model.adapter, or as the section `lora` asks for; nothing where the weights
/// themselves are trained. `adapter` is the folder of the run's own newest ones, if there is one, which have the same
/// settings.
std::optional<nn::LoraSettings> make_lora_settings(const Config& config, const std::filesystem::path& adapter = {});

/// model.quantization; refused without LoRA.
nn::Quantization resolve_quantization(const Config& config);

/// The job's model, frozen in part as it says, with its weights: as the newest checkpoint has them, or at the start; or
/// without any values.
std::unique_ptr<models::VisionLanguageModel> load_model(const Config& config, planner::Job job, at::Device device,
                                                        const std::optional<std::filesystem::path>& checkpoint,
                                                        bool load_weights);
/// In what model.path may differ from its config.json: as the configuration says, and in what an adapter brings whole.
/// A checkpoint of the run itself (`is_strict`) in nothing.
models::LoadSettings make_load_settings(const Config& config, const std::optional<nn::LoraSettings>& lora,
                                        bool is_strict);

/// Says in the log what does not come from the checkpoint. Throws UserError (kUsage) where that is not kept: with LoRA,
/// what is not one of lora.modules_to_save.
void check_new_weights(const models::LoadResult& loaded_weights, bool with_lora,
                       const std::filesystem::path& checkpoint);

/// output.dtype; nothing for auto.
std::optional<at::ScalarType> get_save_dtype(const OutputOptions& options);
models::FrozenParts make_frozen_parts(const ModelOptions& options);
engine::AdamWSettings make_adamw_settings(const engine::TrainingOptions& options);
engine::LearningRates compute_learning_rates(const engine::TrainingOptions& options, double schedule_factor);

}  // namespace vlmtrain::train
