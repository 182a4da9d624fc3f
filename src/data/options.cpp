#include "vlmtrain/data/options.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "vlmtrain/io/dataset_file.h"

namespace vlmtrain::data {

namespace {

Check<std::string> is_date_or_auto() {
  return {"auto or a date such as 2026-11-22", [](const std::string& value) {
            constexpr std::string_view kPattern = "0000-00-00";
            if (value == "auto") return true;
            return value.size() == kPattern.size() &&
                   std::ranges::equal(value, kPattern, [](char character, char pattern) {
                     return pattern == '-' ? character == '-' : character >= '0' && character <= '9';
                   });
          }};
}

/// Parses a text that is a number as a whole; returns nothing for other texts.
std::optional<double> parse_number(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() ? std::optional(number) : std::nullopt;
}

/// Rejects numbers that are no share, such as a percentage. Any other text is the name of a file.
Check<std::string> is_share_or_path() {
  return {"a path, or a share between 0 and 1 such as 0.05", [](const std::string& value) {
            if (value.ends_with('%') && parse_number(value.substr(0, value.size() - 1))) return false;
            const auto number = parse_number(value);
            return !number || (*number > 0 && *number < 1);
          }};
}

Check<std::map<std::string, std::string>> are_known_columns() {
  return {fmt::format("of the names {}", fmt::join(io::kRenamableColumns, ", ")), [](const auto& columns) {
            return std::ranges::all_of(columns, [](const auto& column) {
              return std::ranges::find(io::kRenamableColumns, column.first) != io::kRenamableColumns.end() &&
                     !column.second.empty();
            });
          }};
}

struct AugmentOption {
  std::string_view name;
  double max;
  double image::AugmentSettings::*value;
};

constexpr std::array<AugmentOption, 3> kAugmentOptions{{{"flip", 1.0, &image::AugmentSettings::flip},
                                                        {"rotation", 180.0, &image::AugmentSettings::rotation_degrees},
                                                        {"brightness", 1.0, &image::AugmentSettings::brightness}}};

Check<std::map<std::string, std::string>> are_augmentations() {
  return {"of flip (a probability), rotation (degrees, up to 180) and brightness (a share, up to 1)",
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

void declare(OptionTable& table, DataOptions& options) {
  constexpr int64_t kMaxWorkers = 1024;
  table.describe_section("data", "What is learnt from, and how it is read.");
  table.add_structured(
      "data.train", "path or list of sources", [&options] { return options.train.to_json(); },
      [&options](const nlohmann::ordered_json& value) { return options.train.set(value); },
      "What to train on: a file of JSON, JSON Lines, Parquet or a WebDataset tar; a pattern such as `data/*.parquet`; "
      "a "
      "folder of shards; or a list of such and of `{path, weight, task, image_root}`. With "
      "`weight` each source has that share of what is drawn, whatever its size; with `repeat` instead an epoch goes "
      "through it so often. `task` is that of all its samples (docs/data.md).");
  table.add_structured(
      "data.task_shares", "tasks with shares", [&options] { return options.task_shares.to_json(); },
      [&options](const nlohmann::ordered_json& value) { return options.task_shares.set(value); },
      "Shares of the tasks in what is drawn, such as `{vqa: 0.75, caption: 0.25}`, or `[vqa=0.75, caption=0.25]`; or a "
      "schedule, `[{step: 0, shares: {vqa: 1, caption: 0}}, {step: 500, shares: {vqa: 1, caption: 1}}]`. Empty: tasks "
      "come as the data set has them (docs/data.md).");
  table.add_enum(
      "data.curriculum", options.curriculum,
      {{"none", Curriculum::kNone}, {"length", Curriculum::kLength}, {"images", Curriculum::kImages}},
      "What the first epoch begins with: short samples, or samples of few images. It goes through the samples in 16 "
      "stages, in random order within each; later epochs are in random order.");
  table.add("data.eval", options.eval,
            "What to evaluate on, as data.train; or a share of its samples such as 0.05, which are then held out of "
            "training, drawn by training.seed; empty: none.",
            std::optional{is_share_or_path()});
  table.add("data.columns", options.columns,
            "What the fields or columns of the data are called, where it is not as in docs/data.md: "
            "`{question: prompt, answer: label, image: photo}`. Also one by one: `data.columns.answer=label`.",
            std::optional{are_known_columns()});
  table.add("data.ignore_keys", options.ignore_keys,
            "Keys of records, turns and content blocks that are left out before a record is read, such as "
            "`[weight, tools]`: for data sets with keys that alter learning and are not supported (docs/data.md).");
  table.add("data.image_root", options.image_root,
            "Folder that relative paths of images and videos start from; empty: the folder of the data file.");
  table.add_enum("data.outside_image_root", options.outside_image_root,
                 {{"allow", OutsideImageRoot::kAllow}, {"refuse", OutsideImageRoot::kRefuse}},
                 "Whether samples may name files outside of the folder that relative paths start from. refuse: one "
                 "that does, by an absolute path, by `..` or through a link, is a bad sample.");
  table.add(
      "data.max_length", options.max_length,
      "Most tokens of a sample, image tokens included; what becomes of a longer one, data.on_too_long says: it is "
      "not cut.",
      std::optional{at_least<int64_t>(1)});
  table.add_enum(
      "data.on_too_long", options.on_too_long,
      {{"shrink", LongSamplePolicy::kShrink}, {"drop", LongSamplePolicy::kDrop}, {"fail", LongSamplePolicy::kFail}},
      "What becomes of a sample of more than data.max_length tokens. shrink: its pictures, then the frames "
      "of its videos, lose pixels until it fits, down to a floor (docs/data.md); where it does not fit "
      "then, it is a bad sample. drop: it is left out and counted, whatever data.on_bad_sample says. fail: "
      "it is a bad sample.");
  table.add("data.packing", options.packing,
            "Samples are put into packs of up to `data.pack_max_tokens`, and training.global_batch_size counts packs. "
            "Without it samples lie end to end too, and are not padded: packs make steps of equally many tokens "
            "(docs/data.md).");
  table.add("data.pack_max_tokens", options.pack_max_tokens,
            "Most tokens of a pack, image tokens included; a sample with more is a bad sample.",
            std::optional{at_least<int64_t>(1)});
  table.add("data.pack_max_images", options.pack_max_images,
            "Most images of a pack, videos included; a sample with more is a bad sample.",
            std::optional{at_least<int64_t>(1)});
  table.add("data.pack_max_tiles", options.pack_max_tiles,
            "Most tiles of a pack, or patches where a model takes pictures in their own resolution. auto: no limit.",
            std::optional{allow_auto(at_least<int64_t>(1))});
  table.add("data.max_images_per_sample", options.max_images_per_sample,
            "Most images of a sample; one with more is a bad sample. auto: no limit.",
            std::optional{allow_auto(at_least<int64_t>(1))});
  table.add("data.image_max_pixels", options.image_max_pixels,
            "Most pixels of an image, width x height; a larger one is made smaller. auto: what the model's own "
            "processor allows.",
            std::optional{allow_auto(at_least<int64_t>(1))});
  table.add("data.mask_image_size", options.mask_image_size,
            "Of a model that draws masks: side in pixels of the square that its mask encoder sees a picture in. auto: "
            "what the model's config.json says.",
            std::optional{allow_auto(between<int64_t>(16, 8192))});
  table.add("data.augment", options.augment,
            "How pictures, and their masks with them, are changed at random in training: `{flip: 0.5, rotation: 10, "
            "brightness: 0.2}` mirrors half of them left to right, turns each by up to 10 degrees either way and makes "
            "it up to a fifth brighter or darker. Empty: not at all. No word is changed: leave flip out where texts "
            "say left or right.",
            std::optional{are_augmentations()});
  table.add("data.video_fps", options.video_fps,
            "Frames of a video that are looked at, a second; a folder of frames has no seconds and is taken whole.",
            std::optional{exceeds(0.0)});
  table.add("data.video_max_frames", options.video_max_frames,
            "Most frames of a video that are looked at; from a longer one they are taken further apart.",
            std::optional{at_least<int64_t>(2)});
  table.add_enum("data.video_layout", options.video_layout,
                 {{"released", VideoLayout::kReleased}, {"transformers5", VideoLayout::kTransformers5}},
                 "How a video of a Qwen model stands among the tokens (docs/models.md): as in the code that the "
                 "checkpoints were released with, which vLLM serves them by, or as transformers from 5.3 on.");
  declare(table, options.volume);
  table.add_enum("data.on_bad_sample", options.on_bad_sample,
                 {{"fail", BadSamplePolicy::kFail}, {"skip", BadSamplePolicy::kSkip}},
                 "What to do with a sample that cannot be used: stop and name it, or go on without it and count it in "
                 "ledger.json. The next sample of the order takes its place (docs/data.md).");
  table.add("data.check_at_start", options.check_at_start,
            "Look at every sample of `data.train` before the first step: records, paths, headers of images and videos, "
            "lengths. false: for storage where to open each file takes long; bad samples are found when their turn "
            "comes, and a plan is made for 512 samples spread over the data set (docs/data.md).");
  table.add("data.num_workers", options.num_workers, "Threads that decode and tokenize ahead of the training step.",
            std::optional{between<int64_t>(1, kMaxWorkers)});
  table.add(
      "data.chat_template", options.chat_template,
      "The template that turns a conversation into text (docs/chat-templates.md). auto: the checkpoint's own; where it "
      "has none, its family's. Else the name of one that the checkpoint or the program has, or a file that ends with "
      "`.jinja`; saved checkpoints then carry that one.");
  table.add("data.chat_template_date", options.chat_template_date,
            "What a template takes for today's date, such as 2026-11-22. auto: the day on which the run begins.",
            std::optional{is_date_or_auto()});
}

OrderSettings make_order_settings(const DataOptions& options, uint64_t seed) {
  OrderSettings settings{.seed = seed, .curriculum = options.curriculum};
  if (options.packing) {
    settings.packs = {
        .tokens = options.pack_max_tokens, .num_media = options.pack_max_images, .tiles = options.pack_max_tiles};
  }
  return settings;
}

}  // namespace vlmtrain::data
