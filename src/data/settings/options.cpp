#include "vlmtrain/data/options.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

namespace {

ValueCheck<std::string> make_date_check() {
  return {"auto or a date such as 2026-11-22", [](const std::string& value) {
            constexpr std::string_view kDatePattern = "0000-00-00";
            if (value == "auto") return true;
            return value.size() == kDatePattern.size() &&
                   std::ranges::equal(value, kDatePattern, [](char character, char pattern_character) {
                     return pattern_character == '-' ? character == '-' : character >= '0' && character <= '9';
                   });
          }};
}

/// Parses a text that consists of a number. Returns nothing for other texts.
std::optional<double> parse_number(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() ? std::optional(number) : std::nullopt;
}

/// Accepts numbers between 0 and 1 and paths. Rejects other numbers and percentages, which are
/// mistaken shares.
ValueCheck<std::string> make_share_or_path_check() {
  return {"a path, or a share between 0 and 1 such as 0.05", [](const std::string& value) {
            if (value.ends_with('%') && parse_number(value.substr(0, value.size() - 1))) return false;
            const auto number = parse_number(value);
            return !number || (*number > 0 && *number < 1);
          }};
}

ValueCheck<std::map<std::string, std::string>> make_columns_check() {
  return {fmt::format("a map whose keys are among {}", fmt::join(io::kRenamableColumns, ", ")),
          [](const auto& columns) {
            return std::ranges::all_of(columns, [](const auto& column) {
              return std::ranges::find(io::kRenamableColumns, column.first) != io::kRenamableColumns.end() &&
                     !column.second.empty();
            });
          }};
}

/// A key of data.augment with its maximum.
struct AugmentOption {
  std::string_view name;
  double max;
  double image::AugmentSettings::*value;
};

constexpr std::array<AugmentOption, 3> kAugmentOptions{
    {{"flip", 1.0, &image::AugmentSettings::horizontal_flip_probability},
     {"rotation", 180.0, &image::AugmentSettings::max_rotation_degrees},
     {"brightness", 1.0, &image::AugmentSettings::max_brightness_change}}};

ValueCheck<std::map<std::string, std::string>> make_augment_check() {
  return {"a map of flip (probability), rotation (degrees, up to 180) and brightness (share, up to 1)",
          [](const auto& settings) {
            return std::ranges::all_of(settings, [](const auto& setting) {
              const auto option =
                  std::ranges::find(kAugmentOptions, std::string_view(setting.first), &AugmentOption::name);
              const auto number = parse_number(setting.second);
              return option != kAugmentOptions.end() && number && *number >= 0 && *number <= option->max;
            });
          }};
}

}  // namespace

image::AugmentSettings make_augment_settings(const DataOptions& options) {
  image::AugmentSettings settings;
  for (const auto& [name, number] : options.augment) {
    const auto option = std::ranges::find(kAugmentOptions, std::string_view(name), &AugmentOption::name);
    settings.*(option->value) = parse_number(number).value();
  }
  return settings;
}

std::optional<double> parse_hold_out_share(const DataOptions& options) {
  return parse_number(options.eval);
}

void declare_options(OptionTable& table, DataOptions& options) {
  constexpr int64_t kMaxWorkers = 1024;  // a larger number is probably a typing error; few hosts have more cores
  table.set_section_description("data", "Training and evaluation data, and how it is read.");
  table.add_structured_option(
      keys::data::kTrain, "string or list (of sources)", [&options] { return options.train.to_json(); },
      [&options](const nlohmann::ordered_json& value) { return options.train.set(value); },
      {.doc = "Training data: a JSON, JSON Lines, Parquet or WebDataset tar file; a pattern such as `data/*.parquet`; "
              "a folder of shards; hf://datasets/ORG/NAME (docs/how-to/hub.md); or a list of these and of `{path, "
              "weight, task, image_root}`. `weight` sets the "
              "source's share of the drawn samples, whatever its size. `repeat` instead sets how often an epoch goes "
              "through the source. `task` applies to all samples of the source (docs/reference/data-formats.md).",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"dataset", "datasets", "dataset_name", "dataset_path", "train_file", "train_data",
                            "data_path", "data_file", "dataset_use", "train_dataset", "path_or_dataset", "meta_path",
                            "annotation_path", "dataset_dir"},
                  .text = "data.train: a file of conversations"}}});
  table.add_structured_option(
      keys::data::kTaskShares, "map or list", [&options] { return options.task_shares.to_json(); },
      [&options](const nlohmann::ordered_json& value) { return options.task_shares.set(value); },
      {.doc = "Shares of the tasks among the drawn samples, such as `{vqa: 0.75, caption: 0.25}` or `[vqa=0.75, "
              "caption=0.25]`; or a schedule, `[{step: 0, shares: {vqa: 1, caption: 0}}, {step: 500, shares: {vqa: 1, "
              "caption: 1}}]`. Empty: tasks occur as often as in the data set (docs/reference/data-formats.md).",
       .resume = ResumeRule::kIfRequested});
  table.add_enum(
      keys::data::kCurriculum, options.curriculum,
      {{"none", Curriculum::kNone}, {"length", Curriculum::kLength}, {"images", Curriculum::kImages}},
      {.doc = "Order of the first epoch. length: short samples first. images: samples with few images first. The epoch "
              "goes through the samples in 16 stages, in random order within each. none, and later epochs: random "
              "order.",
       .resume = ResumeRule::kIfRequested});
  table.add(
      keys::data::kEval, options.eval,
      {.doc = "Evaluation data, as data.train; or a share of its samples such as 0.05, which are held out of training "
              "and drawn with training.seed. Empty: none.",
       .resume = ResumeRule::kFree,
       .hints =
           {{.names = {"val_size", "val_set_size", "split_dataset_ratio", "validation_split", "validation_dataset"},
             .text = "data.eval: a data set, or a share of the training data such as 0.05"},
            {.names = {"eval_dataset", "val_dataset", "validation_file", "eval_file", "val_data", "test_datasets"}}}},
      make_share_or_path_check());
  table.add(keys::data::kColumns, options.columns,
            {.doc = "Names of the fields or columns in the data, if they differ from docs/reference/data-formats.md: "
                    "`{question: prompt, answer: label, image: photo}`. One entry can be set alone: "
                    "`data.columns.answer=label`.",
             .resume = ResumeRule::kIfRequested},
            make_columns_check());
  table.add(
      keys::data::kIgnoreKeys, options.ignore_keys,
      {.doc = "Keys that are removed from records, turns and content blocks before a record is read, such as `[weight, "
              "tools]`. For data sets with keys that change training and are not supported "
              "(docs/reference/data-formats.md).",
       .resume = ResumeRule::kFree});
  table.add(keys::data::kImageRoot, options.image_root,
            {.doc = "Folder for relative paths of images and videos. Empty: the folder of the data file.",
             .resume = ResumeRule::kFree,
             .hints = {{.names = {"image_folder", "image_dir", "images_dir", "media_dir", "image_path", "video_folder",
                                  "images_root"}}}});
  table.add_enum(
      keys::data::kOutsideImageRoot, options.outside_image_root,
      {{"allow", OutsideImageRootPolicy::kAllow}, {"refuse", OutsideImageRootPolicy::kRefuse}},
      {.doc = "Whether samples may refer to files outside of the folder for relative paths. refuse: a sample that "
              "does so, by an absolute path, by `..` or through a link, is a bad sample.",
       .resume = ResumeRule::kFree});
  table.add(
      keys::data::kMaxLength, options.max_length,
      {.doc = "Maximum number of tokens per sample, image tokens included. `data.on_too_long` decides what happens to "
              "longer samples; none is truncated.",
       .resume = ResumeRule::kFree,
       .unit = "tokens",
       .hints = {{.names = {"cutoff_len", "max_seq_length", "max_seq_len", "sequence_len", "seq_length",
                            "model_max_length", "block_size"},
                  .text = "data.max_length: longer samples are dropped or rejected, never truncated"}}},
      at_least<int64_t>(1));
  table.add_enum(
      keys::data::kOnTooLong, options.on_too_long,
      {{"shrink", LongSamplePolicy::kShrink}, {"drop", LongSamplePolicy::kDrop}, {"fail", LongSamplePolicy::kFail}},
      {.doc = "Handling of samples with more than data.max_length tokens. shrink: images, then video frames, are "
              "downscaled until the sample fits, to a minimum size (docs/reference/data-formats.md), or it is a bad "
              "sample. drop: the sample is dropped and counted. fail: it is a bad sample.",
       .resume = ResumeRule::kFree});
  table.add(keys::data::kTextWindowTokens, options.text_window_tokens,
            {.doc = "Maximum number of tokens per window of a text without images (`text` records, "
                    "docs/reference/data-formats.md). A longer text is split into windows, each a sample of its own. "
                    "Each token of a text is learned once, also where windows meet. auto: texts are not split, and "
                    "`data.on_too_long` applies to long ones.",
             .resume = ResumeRule::kIfRequested,
             .unit = "tokens"},
            allow_auto(at_least<int64_t>(2)));
  table.add_enum(
      keys::data::kTrainOn, options.train_on, {{"all", TrainedAnswers::kAll}, {"last", TrainedAnswers::kLast}},
      {.doc = "Answers of a conversation that are in the loss. all: all answers. last: only the last one. Answers "
              "that a record excludes (`loss: false`, docs/reference/data-formats.md) are in neither.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"assistant_only_loss", "completion_only_loss", "train_on_inputs", "train_on_prompt",
                            "mask_history"},
                  .text = "data.train_on: all answers or the last one; only answers are learned"}}});
  table.add(
      keys::data::kPacking, options.packing,
      {.doc = "If true, samples are combined into packs of up to `data.pack_max_tokens` tokens, and "
              "training.global_batch_size counts packs. If false, samples are also concatenated without padding; packs "
              "give steps an equal number of tokens (docs/reference/data-formats.md).",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"neat_packing", "sample_packing"},
                  .text = "data.packing: true combines samples into packs; samples are never padded"}}});
  table.add(keys::data::kPackMaxTokens, options.pack_max_tokens,
            {.doc = "Maximum number of tokens per pack, image tokens included. A sample with more is a bad sample.",
             .resume = ResumeRule::kIfRequested,
             .unit = "tokens"},
            at_least<int64_t>(1));
  table.add(keys::data::kPackMaxImages, options.pack_max_images,
            {.doc = "Maximum number of images per pack, videos included. A sample with more is a bad sample.",
             .resume = ResumeRule::kIfRequested,
             .unit = "images"},
            at_least<int64_t>(1));
  table.add(
      keys::data::kPackMaxTiles, options.pack_max_tiles,
      {.doc =
           "Maximum number of tiles per pack, or of patches if the model takes images in their own resolution. auto: "
           "no limit.",
       .resume = ResumeRule::kIfRequested,
       .unit = "tiles"},
      allow_auto(at_least<int64_t>(1)));
  table.add(keys::data::kMaxImagesPerSample, options.max_images_per_sample,
            {.doc = "Maximum number of images per sample. A sample with more is a bad sample. auto: no limit.",
             .resume = ResumeRule::kFree,
             .unit = "images",
             .hints = {{.names = {"max_images", "num_images", "limit_mm_per_prompt"}}}},
            allow_auto(at_least<int64_t>(1)));
  table.add(
      keys::data::kImageMaxPixels, options.image_max_pixels,
      {.doc =
           "Maximum number of pixels per image, width x height. Larger images are downscaled. auto: the limit of the "
           "model's processor.",
       .resume = ResumeRule::kFree,
       .unit = "pixels",
       .hints = {{.names = {"max_pixels", "image_size", "image_resolution", "video_max_pixels", "max_dynamic_patch"}}}},
      allow_auto(at_least<int64_t>(1)));
  table.add(
      keys::data::kMaskImageSize, options.mask_image_size,
      {.doc =
           "For models that predict masks: side in pixels of the square input of the mask encoder. auto: the value in "
           "the model's config.json.",
       .resume = ResumeRule::kIfRequested,
       .unit = "pixels"},
      allow_auto(between<int64_t>(16, 8192)));
  table.add(
      keys::data::kAugment, options.augment,
      {.doc = "Random augmentation of images with their masks and boxes during training. `{flip: 0.5, rotation: 10, "
              "brightness: 0.2}` mirrors half of the images left to right, rotates each by up to 10 degrees either way "
              "and makes it up to 20 % brighter or darker. Empty: none. Texts are not changed: omit flip if texts "
              "mention left or right.",
       .resume = ResumeRule::kIfRequested},
      make_augment_check());
  table.add(
      keys::data::kVideoFps, options.video_fps,
      {.doc = "Number of frames sampled per second of video. A folder of frames has no frame rate: all its frames are "
              "used, up to data.video_max_frames.",
       .resume = ResumeRule::kFree,
       .unit = "frames per second",
       .hints = {{.names = {"fps", "video_sample_fps"}}}},
      exceeds(0.0));
  table.add(
      keys::data::kVideoMaxFrames, options.video_max_frames,
      {.doc = "Maximum number of frames sampled per video. Longer videos are sampled at larger intervals.",
       .resume = ResumeRule::kFree,
       .unit = "frames",
       .hints = {{.names = {"max_frames", "video_maxlen", "nframes", "num_frames", "fps_max_frames", "video_max_len"},
                  .text = "data.video_max_frames; for volumes data.volume.max_frames"}}},
      at_least<int64_t>(2));
  table.add_enum(
      keys::data::kVideoLayout, options.video_layout,
      {{"released", VideoTokenLayout::kReleasedCode}, {"transformers5", VideoTokenLayout::kTransformers5}},
      {.doc = "Token layout of videos in Qwen models (docs/reference/models.md). released: as in the code that was "
              "released with the checkpoints, which vLLM also uses. transformers5: as in transformers 5.3 and later.",
       .resume = ResumeRule::kIfRequested});
  declare_options(table, options.volume);
  declare_options(table, options.boxes);
  table.add_enum(
      keys::data::kOnBadSample, options.on_bad_sample,
      {{"fail", BadSamplePolicy::kFail}, {"skip", BadSamplePolicy::kSkip}},
      {.doc = "Handling of samples that cannot be used. fail: stop and report the sample. skip: continue without it "
              "and count it in ledger.json. The next sample in the order takes its place "
              "(docs/reference/data-formats.md).",
       .resume = ResumeRule::kFree});
  table.add(
      keys::data::kCheckAtStart, options.check_at_start,
      {.doc =
           "If true, every sample of `data.train` is checked before the first step: records, paths, headers of media, "
           "lengths. false: for slow storage. Bad samples are then found when they are read, and the plan is based on "
           "512 samples (docs/reference/data-formats.md).",
       .resume = ResumeRule::kFree});
  table.add(keys::data::kNumWorkers, options.num_workers,
            {.doc = "Number of threads that decode and tokenize ahead of the training step.",
             .resume = ResumeRule::kFree,
             .unit = "threads",
             .hints = {{.names = {"dataloader_num_workers", "preprocessing_num_workers", "num_proc", "dataset_num_proc",
                                  "workers"}}}},
            between<int64_t>(1, kMaxWorkers));
  table.add(
      keys::data::kChatTemplate, options.chat_template,
      {.doc = "Template that turns a conversation into text (docs/reference/chat-templates.md). auto: the checkpoint's "
              "own, or its family's if it has none. Otherwise the name of a template of the checkpoint or of the "
              "program, or a file that ends with `.jinja`. Saved checkpoints then contain that template.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"template", "conv_version", "conv_mode", "conversation_template", "conv_style"}}}});
  table.add(
      keys::data::kChatTemplateDate, options.chat_template_date,
      {.doc = "Date that a template uses as today's date, such as 2026-11-22. auto: the day on which the run starts.",
       .resume = ResumeRule::kIfRequested},
      make_date_check());
}

OrderSettings make_order_settings(const DataOptions& options, uint64_t seed) {
  OrderSettings settings{.seed = seed, .curriculum = options.curriculum};
  if (options.packing) {
    settings.pack_limits = {.max_tokens = options.pack_max_tokens,
                            .max_media = options.pack_max_images,
                            .max_tiles = options.pack_max_tiles};
  }
  return settings;
}

}  // namespace vlmtrain::data
