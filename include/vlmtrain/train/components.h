#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/loader/loader.h"
#include "vlmtrain/engine/optimizer/adamw.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/nn/weights/lora_settings.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// A source of data.train, with the indices of its records that are held out of training.
struct SourceSplit {
  std::string path;
  std::shared_ptr<const io::Records> records;
  std::vector<int64_t> held_out;
};

/// Opens the records of data.train without those that data.eval holds out of it. Relative paths in
/// records start from data.image_root or, where that is empty, from the folder of the file that
/// names them. Appends the sources of which a share is held out to `source_splits` unless it is
/// null. Throws UserError (kBadData) where there are no records.
std::shared_ptr<const data::DataSet> open_training_records(const Config& config,
                                                           std::vector<SourceSplit>* source_splits = nullptr);

/// Opens the records of data.eval. Throws UserError (kBadData) where there are none.
std::shared_ptr<const io::Records> open_evaluation_records(const Config& config);

/// Opens the records of a file. Throws UserError (kBadData) where it has none.
std::shared_ptr<const io::Records> read_records(const std::filesystem::path& path, const io::RecordSettings& settings);

/// Returns how the records of a data set are read.
io::RecordSettings make_record_settings(const data::DataOptions& data);

/// Returns how samples become model inputs. `adapter` is the adapter that training continues, whose
/// chat template takes precedence over the checkpoint's own; empty: none.
models::ProcessorSettings make_processor_settings(const data::DataOptions& data,
                                                  const std::filesystem::path& adapter = {});

/// Returns the settings of the data loader.
data::LoaderSettings make_loader_settings(const Config& config);

/// Returns the adapters of a run: those of model.adapter, or what the section `lora` asks for;
/// nothing where the weights themselves are trained. `adapter` is the folder of the run's newest
/// adapters, which have the same settings; empty: none. Throws UserError (kUsage).
std::optional<nn::LoraSettings> make_lora_settings(const Config& config, const std::filesystem::path& adapter = {});

/// Returns model.quantization. Throws UserError (kUsage) where it is set without LoRA.
nn::Quantization resolve_quantization(const Config& config);

/// Builds the job's model with its parts frozen. Loads the weights of `checkpoint`, or those that
/// the run starts from, unless `load_weights` is false. Throws UserError.
std::unique_ptr<models::VisionLanguageModel> load_model(const Config& config, planner::Job job, at::Device device,
                                                        const std::optional<std::filesystem::path>& checkpoint,
                                                        bool load_weights);

/// Returns in what model.path may differ from its config.json: what the configuration allows, and
/// what an adapter replaces as a whole. With `is_strict`, for a checkpoint of the run itself,
/// nothing may differ.
models::LoadSettings make_load_settings(const Config& config, const std::optional<nn::LoraSettings>& lora,
                                        bool is_strict);

/// Logs which weights do not come from the checkpoint. Throws UserError (kUsage) where such weights
/// would not be saved: with LoRA, those outside lora.modules_to_save.
void check_new_weights(const models::LoadResult& loaded_weights, bool with_lora,
                       const std::filesystem::path& checkpoint);

/// Returns output.dtype; nothing for auto.
std::optional<at::ScalarType> get_save_dtype(const OutputOptions& options);

/// Returns the parts of the model that section `model` freezes.
models::FrozenParts make_frozen_parts(const ModelOptions& options);

/// Returns the settings of the optimizer.
engine::AdamWSettings make_adamw_settings(const engine::TrainingOptions& options);

/// Returns the learning rate of each part of the model at a factor of the schedule.
engine::LearningRates compute_learning_rates(const engine::TrainingOptions& options, double schedule_factor);

}  // namespace vlmtrain::train
