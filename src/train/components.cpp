#include "vlmtrain/train/components.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "train/balance.h"
#include "train/data_check/data_check.h"
#include "train/data_check/run_records.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/index/hold_out.h"
#include "vlmtrain/data/loader/loader.h"
#include "vlmtrain/engine/optimizer/optimizer.h"
#include "vlmtrain/hub/repo.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/base_weights.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/planner/target.h"
#include "vlmtrain/train/hub_references.h"

namespace vlmtrain::train {

io::RecordSettings make_record_settings(const data::DataOptions& data) {
  io::RecordSettings settings{
      .columns = data.columns,
      .ignore_keys = data.ignore_keys,
      .boxes = data.boxes.make_box_settings(),
      .restrict_to_image_root = data.outside_image_root == data::OutsideImageRootPolicy::kRefuse};
  if (!data.image_root.empty()) settings.image_root = data.image_root;
  return settings;
}

std::shared_ptr<const io::Records> open_nonempty_records(const std::filesystem::path& path,
                                                         const io::RecordSettings& settings,
                                                         const std::map<std::string, std::string>& commits) {
  auto records = hub::has_hub_scheme(path.native())
                     ? io::open_records(fetch_hub_dataset(path.string(), commits).files, path.string(), settings)
                     : io::open_records(path, settings);
  check_row_group_memory(/*limit_gb=*/{});
  if (records->size() == 0) throw data_error("{}: contains no samples; give a file with records", path.string());
  return records;
}

namespace {

/// Opens the sources of data.train. If a share is held out, restricts each to the records in
/// `split_indices`, the training or held-out part of its split.
std::shared_ptr<const data::DataSet> open_split_sources(const Config& config,
                                                        std::vector<int64_t> data::HoldOutSplit::*split_indices,
                                                        std::vector<HoldOutSource>* hold_out_sources) {
  const auto share = data::parse_hold_out_share(config.data);
  TextSplitter text_splitter(config);
  std::vector<data::DataSet::SourceRecords> sources;
  sources.reserve(config.data.train.sources().size());
  for (const data::Source& source : config.data.train.sources()) {
    io::RecordSettings settings = make_record_settings(config.data);
    if (!source.image_root.empty()) settings.image_root = source.image_root;
    auto records = open_nonempty_records(source.path, settings, config.hub.commits);
    if (share) {
      const int64_t samples = records->size();
      const bool is_training_part = split_indices == &data::HoldOutSplit::train;
      auto split = split_source(config, source, *records, /*log_changes=*/is_training_part);
      if (hold_out_sources != nullptr)
        hold_out_sources->push_back({.path = source.path, .records = records, .held_out = split.held_out});
      records = std::make_shared<io::SubsetRecords>(std::move(records), std::move(split.*split_indices));
      if (is_training_part) {
        spdlog::info("data {}: {} of {} {} held out of training ({}={})", source.path, samples - records->size(),
                     pluralize(samples, "sample"), samples - records->size() == 1 ? "is" : "are", keys::data::kEval,
                     config.data.eval);
      }
    }
    sources.push_back({.source = source, .records = text_splitter.split(std::move(records), source.path)});
  }
  check_row_group_memory(config.memory.limit_gb);
  return std::make_shared<data::DataSet>(std::move(sources));
}

}  // namespace

std::shared_ptr<const data::DataSet> open_training_records(const Config& config,
                                                           std::vector<HoldOutSource>* hold_out_sources) {
  return open_split_sources(config, &data::HoldOutSplit::train, hold_out_sources);
}

std::shared_ptr<const io::Records> open_evaluation_records(const Config& config) {
  if (!data::parse_hold_out_share(config.data)) {
    auto records = open_nonempty_records(config.data.eval, make_record_settings(config.data), config.hub.commits);
    check_row_group_memory(config.memory.limit_gb);
    return TextSplitter(config).split(std::move(records), config.data.eval);
  }
  if (config.data.train.empty()) {
    throw usage_error("{}: is {}, a share of {}, which is empty; set {}", keys::data::kEval, config.data.eval,
                      keys::data::kTrain, keys::data::kTrain);
  }
  return open_split_sources(config, &data::HoldOutSplit::held_out, nullptr);
}

models::ProcessorSettings make_processor_settings(const data::DataOptions& data, const std::filesystem::path& adapter) {
  return {.max_length = data.max_length,
          .on_too_long = data.on_too_long,
          .max_images_per_sample = data.max_images_per_sample,
          .image_max_pixels = data.image_max_pixels,
          .video_fps = data.video_fps,
          .video_max_frames = data.video_max_frames,
          .video_layout = data.video_layout,
          .train_on = data.train_on,
          .augment = data::make_augment_settings(data),
          .boxes = data.boxes.conversion,
          .mask_image_size = data.mask_image_size,
          .volume = data.volume,
          .chat_template = data.chat_template,
          .chat_template_date = data.chat_template_date == "auto" ? "" : data.chat_template_date,
          .chat_template_folder = adapter};
}

data::LoaderSettings make_loader_settings(const Config& config) {
  return {
      .global_batch_size = config.training.global_batch_size,
      .global_batch_tokens = config.training.batch_and_tasks.global_batch_tokens,
      .num_workers = config.data.num_workers,
      .prefetch_bytes = planner::compute_prefetch_bytes(memory::get_host_limit_bytes(), memory::get_resident_bytes()),
      .on_bad_sample = config.data.on_bad_sample};
}

namespace {

/// Throws UserError (kUsage) for a path that is not UTF-8, which JSON cannot contain.
void check_base_path_is_utf8(const std::filesystem::path& base) {
  const std::string path = std::filesystem::absolute(base).string();
  if (is_utf8(path)) return;
  throw usage_error(
      "{}: {} is not valid UTF-8, so adapter_config.json could not name it as the adapter's base; rename the folder, "
      "or train without LoRA",
      keys::model::kPath, path);
}

}  // namespace

std::optional<nn::LoraSettings> make_lora_settings(const Config& config, const std::filesystem::path& adapter) {
  const LoraOptions& options = config.lora;
  const bool continues_adapter = !config.model.adapter.empty();
  // The settings of section `lora` that apply besides an adapter's own, or with rank 0.
  const LoraOptions allowed_lora_options =
      continues_adapter ? LoraOptions{.dropout = options.dropout, .loraplus_lr_ratio = options.loraplus_lr_ratio}
                        : LoraOptions{};
  if (continues_adapter && options != allowed_lora_options) {
    throw usage_error(
        "lora: {} is {}, which has its own rank, alpha and targets; remove all keys of this section except {} and {}",
        keys::model::kAdapter, config.model.adapter, keys::lora::kDropout, keys::lora::kLoraplusLrRatio);
  }
  if (!continues_adapter && options.rank == 0) {
    if (options == allowed_lora_options) return std::nullopt;
    throw usage_error("lora: has settings, but {} is 0, which disables LoRA; set {}, such as {}=16", keys::lora::kRank,
                      keys::lora::kRank, keys::lora::kRank);
  }
  check_base_path_is_utf8(config.model.folder());
  if (continues_adapter || !adapter.empty()) {
    const std::filesystem::path base = config.model.folder();
    std::error_code error;
    auto settings =
        models::read_adapter_settings(adapter.empty() ? std::filesystem::path(config.model.adapter_folder()) : adapter,
                                      std::filesystem::exists(base / "config.json", error) ? base : "");
    settings.dropout = options.dropout;
    if (config.model.freeze_mask_encoder) settings.excluded_components.push_back(nn::Component::kMaskEncoder);
    return settings;
  }
  if (options.target_modules.empty()) {
    throw usage_error("{}: is empty; list the Linear layers that get adapters, or set all-linear",
                      keys::lora::kTargetModules);
  }
  std::vector<nn::Component> frozen_components;
  if (config.model.freeze_vision_tower) frozen_components.push_back(nn::Component::kVisionTower);
  if (config.model.freeze_projector) frozen_components.push_back(nn::Component::kProjector);
  if (config.model.freeze_language_model) frozen_components.push_back(nn::Component::kLanguageModel);
  if (config.model.freeze_mask_encoder) frozen_components.push_back(nn::Component::kMaskEncoder);
  auto modules_to_save = options.modules_to_save;
  std::ranges::copy(models::get_default_modules_to_save(config.model.folder(), get_frozen_parts(config.model)),
                    std::back_inserter(modules_to_save));
  return nn::LoraSettings{.rank = options.rank,
                          .alpha = options.alpha,
                          .dropout = options.dropout,
                          .use_rslora = options.use_rslora,
                          .use_dora = options.use_dora,
                          .target_modules = options.target_modules,
                          .modules_to_save = modules_to_save,
                          .excluded_components = frozen_components};
}

nn::Quantization resolve_quantization(const Config& config) {
  const nn::Quantization quantization = config.model.quantization;
  if (quantization != nn::Quantization::kNone && config.lora.rank == 0 && config.model.adapter.empty()) {
    throw usage_error(
        "{}: {} needs frozen weights, but without LoRA they are trained; set {}, such as {}=16, or {}=none",
        keys::model::kQuantization, nn::to_string(quantization), keys::lora::kRank, keys::lora::kRank,
        keys::model::kQuantization);
  }
  return quantization;
}

std::optional<at::ScalarType> get_save_dtype(const OutputOptions& options) {
  switch (options.dtype) {
    case OutputDtype::kFp32:
      return at::kFloat;
    case OutputDtype::kBf16:
      return at::kBFloat16;
    case OutputDtype::kFp16:
      return at::kHalf;
    case OutputDtype::kAuto:
      break;
  }
  return std::nullopt;
}

models::FrozenParts get_frozen_parts(const ModelOptions& options) {
  return {.vision_tower = options.freeze_vision_tower,
          .projector = options.freeze_projector,
          .language_model = options.freeze_language_model,
          .per_layer_embeddings = options.freeze_per_layer_embeddings,
          .mask_encoder = options.freeze_mask_encoder};
}

namespace {

/// Throws UserError (kUsage) if no parameter is trained, or if a module is both frozen and in
/// lora.modules_to_save. REQUIRES: the frozen parts of `model` are frozen.
void check_has_trainable_parameters(const models::VisionLanguageModel& model) {
  const auto is_trained = [](const nn::Parameter& parameter) { return parameter.tensor.requires_grad(); };
  if (std::ranges::none_of(model.parameters().all(), is_trained)) {
    throw usage_error("{}, {} and {} leave nothing to train; set one of them to false", keys::model::kFreezeVisionTower,
                      keys::model::kFreezeProjector, keys::model::kFreezeLanguageModel);
  }
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.is_in_modules_to_save || is_trained(parameter)) continue;
    throw usage_error("{}: trains {}, but model.freeze_… freezes its part of the model; remove one of the two",
                      keys::lora::kModulesToSave, parameter.name);
  }
}

}  // namespace

std::unique_ptr<models::VisionLanguageModel> load_model(const Config& config, planner::Job job, at::Device device,
                                                        const std::optional<std::filesystem::path>& checkpoint,
                                                        bool load_weights) {
  job.lora = make_lora_settings(config, checkpoint.value_or(""));
  if (checkpoint && !job.lora) job.model = *checkpoint;
  const auto& lora = job.lora;
  const std::filesystem::path& weights = job.model;
  auto model = planner::build_model(job, device);
  check_has_trainable_parameters(*model);
  if (!load_weights) return model;
  if (!checkpoint && !config.model.adapter.empty()) {
    const std::filesystem::path adapter = config.model.adapter_folder();
    if (!models::warn_on_base_fingerprint_mismatch(adapter, config.model.folder())) {
      models::warn_on_base_folder_mismatch(adapter, config.model.folder());
    }
  }
  const auto seed = static_cast<uint64_t>(config.training.seed);
  const bool is_new_run = checkpoint == std::nullopt;
  const auto result =
      models::load_base_weights(*model, weights, make_load_settings(config, lora, /*is_strict=*/!is_new_run && !lora));
  if (is_new_run) check_newly_initialized_weights(result, lora.has_value(), weights);
  if (!lora) return model;
  if (lora->adapter.empty()) {
    models::initialize_adapter(*model, seed);
  } else {
    models::load_adapter(*model, lora->adapter);
  }
  return model;
}

namespace {

/// Returns nullopt for precisions without a loss scale.
std::optional<engine::LossScaleSettings> make_loss_scale_settings(const engine::TrainingOptions& options) {
  if (options.precision != engine::Precision::kFp16) return std::nullopt;
  engine::LossScaleSettings settings{.dynamic = !options.loss_scale,
                                     .growth_interval = options.loss_scale_growth_steps};
  settings.init_scale = options.loss_scale.value_or(settings.init_scale);
  return settings;
}

}  // namespace

engine::OptimizerSettings make_optimizer_settings(const Config& config) {
  engine::OptimizerSettings settings = config.training.optimizer;
  settings.loss_scale = make_loss_scale_settings(config.training);
  settings.seed = static_cast<uint64_t>(config.training.seed);
  settings.loraplus_lr_ratio = config.lora.loraplus_lr_ratio;
  engine::check_optimizer_settings(settings);
  return settings;
}

engine::LearningRates compute_learning_rates(const engine::TrainingOptions& options, double schedule_factor) {
  const double factor = schedule_factor * compute_reference_lr_factor(options);
  return {.vision_tower = factor * options.vision_learning_rate.value_or(options.learning_rate),
          .projector = factor * options.projector_learning_rate.value_or(options.learning_rate),
          .language_model = factor * options.learning_rate,
          .masks = factor * options.mask_learning_rate.value_or(options.learning_rate),
          .schedule_factor = factor};
}

namespace {

/// Lists only the first names, because a model may lack thousands of weights.
std::string format_name_list(const std::vector<std::string>& names) {
  constexpr size_t kMaxListedNames = 6;  // Not tuned.
  const auto first = std::span(names).first(std::min(names.size(), kMaxListedNames));
  return fmt::format("{}{}", fmt::join(first, ", "), names.size() > kMaxListedNames ? ", …" : "");
}

std::string format_name_list(const std::vector<nn::Parameter>& parameters) {
  std::vector<std::string> names;
  names.reserve(parameters.size());
  for (const auto& parameter : parameters) names.push_back(parameter.name);
  return format_name_list(names);
}

}  // namespace

models::LoadSettings make_load_settings(const Config& config, const std::optional<nn::LoraSettings>& lora,
                                        bool is_strict) {
  if (is_strict) return {.allow_non_finite_values = true};
  models::LoadSettings settings{.allow_missing = config.model.allow_missing,
                                .allow_unexpected = config.model.allow_unexpected,
                                .allow_embedding_resize = config.model.resize_embeddings,
                                .seed = static_cast<uint64_t>(config.training.seed)};
  // The adapter has its own values of these modules, so the base may lack them.
  if (lora && !lora->adapter.empty()) {
    settings.allow_missing.insert(settings.allow_missing.end(), lora->modules_to_save.begin(),
                                  lora->modules_to_save.end());
    settings.allow_embedding_resize |= lora->vocabulary_rows > 0;
  }
  return settings;
}

void check_newly_initialized_weights(const models::LoadResult& loaded_weights, bool with_lora,
                                     const std::filesystem::path& checkpoint) {
  for (const auto* parameters : {&loaded_weights.initialized_parameters, &loaded_weights.resized_parameters}) {
    for (const auto& parameter : *parameters) {
      if (!with_lora || parameter.is_in_modules_to_save || !nn::is_trainable(parameter.component)) continue;
      throw usage_error(
          "{}: has no {} of the size in config.json, and LoRA does not save new weights; add its module to {}",
          checkpoint.string(), parameter.name, keys::lora::kModulesToSave);
    }
  }
  if (!loaded_weights.initialized_parameters.empty()) {
    spdlog::warn("{} lacks {} of the weights, which are initialized randomly ({}): {}", checkpoint.string(),
                 loaded_weights.initialized_parameters.size(), keys::model::kAllowMissing,
                 format_name_list(loaded_weights.initialized_parameters));
  }
  if (!loaded_weights.resized_parameters.empty()) {
    spdlog::warn("{} has a different number of rows in {} of the weights ({}): {}", checkpoint.string(),
                 loaded_weights.resized_parameters.size(), keys::model::kResizeEmbeddings,
                 format_name_list(loaded_weights.resized_parameters));
  }
  if (!loaded_weights.skipped_tensor_names.empty()) {
    spdlog::warn("{} has {} unexpected tensors, which are skipped ({}): {}", checkpoint.string(),
                 loaded_weights.skipped_tensor_names.size(), keys::model::kAllowUnexpected,
                 format_name_list(loaded_weights.skipped_tensor_names));
  }
}

}  // namespace vlmtrain::train
