#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/nn/weights/weight_settings.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::data {
class DataSet;
struct LoaderSettings;
}  // namespace vlmtrain::data
namespace vlmtrain::engine {
struct LearningRates;
}
namespace vlmtrain::models {
struct FrozenParts;
struct LoadResult;
struct LoadSettings;
struct ProcessorSettings;
class VisionLanguageModel;
}  // namespace vlmtrain::models
namespace vlmtrain::planner {
struct Job;
}

namespace vlmtrain::train {

/// A source of data.train of which data.eval holds out a share.
struct HoldOutSource {
  std::string path;                            ///< as in data.train
  std::shared_ptr<const io::Records> records;  ///< all records of the source
  std::vector<int64_t> held_out;               ///< indices into `records`, ascending
};

/// Opens the records of data.train, except records that data.eval holds out. Relative paths in
/// records start from data.image_root or, if that is empty, from the folder of the data file.
/// Appends the sources of which a share is held out to `hold_out_sources` unless it is null. Throws
/// UserError (kBadData) if a source has no records.
std::shared_ptr<const data::DataSet> open_training_records(const Config& config,
                                                           std::vector<HoldOutSource>* hold_out_sources = nullptr);

/// Opens the records of data.eval. Throws UserError (kBadData) if there are none.
std::shared_ptr<const io::Records> open_evaluation_records(const Config& config);

/// Opens the records of a path, or of a data set on the Hub at its commit in `commits`. Throws
/// UserError (kBadData) if it has none, and as fetch_hub_dataset().
std::shared_ptr<const io::Records> open_nonempty_records(const std::filesystem::path& path,
                                                         const io::RecordSettings& settings,
                                                         const std::map<std::string, std::string>& commits = {});

/// Returns the settings with which the records of a data set are read.
io::RecordSettings make_record_settings(const data::DataOptions& data);

/// Returns the settings with which samples become model inputs. `adapter` is the folder of the
/// adapter that training continues; its chat template takes precedence over the checkpoint's. Empty
/// if there is none.
models::ProcessorSettings make_processor_settings(const data::DataOptions& data,
                                                  const std::filesystem::path& adapter = {});

/// Returns the settings of the data loader.
data::LoaderSettings make_loader_settings(const Config& config);

/// Returns the LoRA settings of a run: those of model.adapter, or of section `lora`; nullopt if the
/// weights themselves are trained. `adapter` is the folder of the run's newest adapter checkpoint,
/// whose settings are then returned; empty for a new run. Throws UserError (kUsage) for keys that
/// contradict each other.
std::optional<nn::LoraSettings> make_lora_settings(const Config& config, const std::filesystem::path& adapter = {});

/// Returns model.quantization. Throws UserError (kUsage) if it is set without LoRA.
nn::Quantization resolve_quantization(const Config& config);

/// Builds the job's model on `device` and freezes its frozen parts. Unless `load_weights` is false,
/// loads the weights of `checkpoint`, the run's newest checkpoint, or of model.path and
/// model.adapter if it is nullopt. Throws UserError: kUsage if nothing is left to train, kBadData
/// for an unusable checkpoint.
std::unique_ptr<models::VisionLanguageModel> load_model(const Config& config, planner::Job job, at::Device device,
                                                        const std::optional<std::filesystem::path>& checkpoint,
                                                        bool load_weights);

/// Returns how the tensors of a checkpoint may differ from its config.json: as the section `model`
/// allows, and in modules that an adapter replaces in full. With `is_strict`, for a checkpoint of
/// the run itself, no tensor may differ.
models::LoadSettings make_load_settings(const Config& config, const std::optional<nn::LoraSettings>& lora,
                                        bool is_strict);

/// Logs the weights that `checkpoint` lacks or has in another size. Throws UserError (kUsage) if
/// `with_lora` and such a weight is outside lora.modules_to_save, since it would not be saved.
void check_newly_initialized_weights(const models::LoadResult& loaded_weights, bool with_lora,
                                     const std::filesystem::path& checkpoint);

/// Returns output.dtype as a data type; nullopt for auto.
std::optional<at::ScalarType> get_save_dtype(const OutputOptions& options);

/// Returns the parts of the model that section `model` freezes.
models::FrozenParts get_frozen_parts(const ModelOptions& options);

/// Returns the settings of the optimizer. Throws UserError (kUsage) if they contradict each other.
engine::OptimizerSettings make_optimizer_settings(const Config& config);

/// Returns the learning rate of each part of the model. `schedule_factor`: the schedule's factor of
/// the peak learning rate, from 0 to 1.
engine::LearningRates compute_learning_rates(const engine::TrainingOptions& options, double schedule_factor);

}  // namespace vlmtrain::train
