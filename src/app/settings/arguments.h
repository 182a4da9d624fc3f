#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/engine/settings/sampling_settings.h"

namespace vlmtrain::app {

// The arguments of each command. declare_arguments.cpp has the flag or positional argument of each field
// and its description, as in `vlmtrain COMMAND --help`. Fields of optional flags without a value
// here are empty if the flag is not given. Fields named `config` are paths of YAML files.
// `overrides` has entries key=value, which replace values of the file.

/// The flags of `vlmtrain plan` that describe samples in place of a data set. Integer fields are
/// numbers of media or tokens per sample.
struct SampleFlags {
  std::optional<int64_t> num_images;
  std::string image_size;  ///< in pixels: WIDTHxHEIGHT, or one number for both
  std::string image_mix;   ///< see parse_image_mix()
  std::optional<int64_t> num_volumes;
  std::string volume_size;              ///< in voxels, see parse_volume_size()
  std::optional<int64_t> video_frames;  ///< frames of the one video of each sample
  std::optional<double> fps;            ///< of that video
  std::string video_size;               ///< as image_size
  std::optional<int64_t> num_masks;
  std::optional<int64_t> num_text_tokens;
  std::optional<int64_t> num_answer_tokens;

  /// Returns whether any flag was given.
  bool has_any_flag() const {
    return num_images || num_volumes || num_masks || num_text_tokens || num_answer_tokens || video_frames || fps ||
           !image_size.empty() || !image_mix.empty() || !video_size.empty() || !volume_size.empty();
  }
};

/// The arguments of `vlmtrain train`.
struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string device = "auto";
  bool json = false;
  bool quiet = false;
  int64_t nproc_per_node = 1;
};

/// LoRA rank of `--finetune lora` without lora.rank: the rank that messages and docs/how-to/lora-and-qlora.md
/// suggest.
inline constexpr int64_t kDefaultLoraRank = 16;

/// The arguments of `vlmtrain plan`.
struct PlanArguments {
  std::string gpu;
  std::optional<double> gpu_gigabytes;
  std::optional<double> host_memory_gigabytes;  ///< of 10⁹ bytes, of a machine
  std::string config;
  std::vector<std::string> flag_overrides;  ///< flags that set configuration keys, such as --model, as key=value
  std::vector<std::string> overrides;       ///< key=value; they apply after `flag_overrides`
  SampleFlags samples;
  std::string finetuning_type;
  std::string tokenizer;
  int64_t world_size = 1;
  int64_t num_nodes = 1;
  double network_gbit = 100;  ///< bandwidth between two nodes in 10⁹ bits per second; the default is an assumption
  bool json = false;
  std::string timeline;  ///< path of an HTML file
  bool compare = false;

  /// Returns `flag_overrides`, then `overrides`: the order in which they apply. The last value of a
  /// key counts.
  std::vector<std::string> collect_overrides() const {
    auto all_overrides = flag_overrides;
    all_overrides.insert(all_overrides.end(), overrides.begin(), overrides.end());
    return all_overrides;
  }

  /// Returns whether flags, not a data set, describe the samples.
  bool has_sample_flags() const { return samples.has_any_flag(); }
};

/// The arguments of `vlmtrain inspect`.
struct InspectArguments {
  std::string config;
  std::vector<std::string> overrides;
  PlanArguments gpu_arguments;  ///< only `gpu` and `gpu_gigabytes` are set
  std::string tokenizer;
  bool decode = false;
  int64_t samples = 3;               ///< number of samples to show
  std::vector<std::string> records;  ///< ids, or positions from 1
  std::string html;
  bool json = false;
};

/// The arguments of `vlmtrain doctor`.
struct DoctorArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string output_dir;
  std::string device = "auto";
  bool json = false;
};

/// The arguments of `vlmtrain init`.
struct InitArguments {
  std::string preset;
  std::string out;
  std::string tokenizer;
  std::string text_model;
  std::string mask_model;
  std::string volume_tower;
  std::optional<int64_t> num_tower_heads;
  std::string volume_size;
  uint64_t seed = 0;
  std::string dtype;  ///< empty: float32 for random weights; copied weights keep their data type
  bool json = false;
};

/// The arguments of `vlmtrain eval`.
struct EvalArguments {
  std::string config;
  std::string checkpoint;
  std::string base;
  std::vector<std::string> overrides;
  std::string device = "auto";
  std::string answers;
  int64_t max_new_tokens = 32;
  std::string batch_size = "auto";
  std::string mask_output_dir;
  bool json = false;
};

/// The arguments of `vlmtrain generate`.
struct GenerateArguments {
  std::string checkpoint;
  std::string base;
  std::vector<std::string> images;
  std::vector<std::string> videos;
  std::vector<std::string> volumes;
  std::vector<std::string> modalities;
  std::string prompt;
  std::string system_prompt;
  std::string data;
  std::string record;
  std::string chat_template = "auto";
  bool show_prompt = false;
  std::string device = "auto";
  std::string precision = "fp32";
  int64_t max_new_tokens = 64;
  engine::SamplingSettings sampling;
  bool use_cache = true;
  std::string mask_output_dir;
  bool json = false;
  std::vector<std::string> data_settings;
};

/// The arguments of `vlmtrain merge`.
struct MergeArguments {
  std::string adapter;
  std::string out;
  std::string base;
  std::string dtype = "auto";
  bool json = false;
};

/// The arguments of `vlmtrain download`.
struct DownloadArguments {
  std::vector<std::string> references;
  std::string config;
  bool no_weights = false;
  bool json = false;
};

/// The arguments of `vlmtrain options`.
struct OptionsArguments {
  bool markdown = false;
};

/// The arguments of `vlmtrain report`.
struct ReportArguments {
  std::string folder;
};

/// The arguments of all commands. CommandLine::parse() sets those of the called command; the others
/// keep their defaults.
struct Arguments {
  TrainArguments train;
  PlanArguments plan;
  InspectArguments inspect;
  DoctorArguments doctor;
  InitArguments init;
  EvalArguments eval;
  GenerateArguments generate;
  MergeArguments merge;
  DownloadArguments download;
  OptionsArguments options;
  ReportArguments report;
};

/// A component of --image-mix: samples with the same number of images.
struct ImageMixComponent {
  int64_t num_images = 0;  ///< images per sample
  double share = 0;        ///< greater than 0; the shares of a mix add up to 1
};

/// Parses the value of --image-mix, such as 1:0.5,2:0.25,3:0.25, into components by ascending
/// number of images. Normalizes shares that do not add up to 1. Throws UserError (kUsage) for
/// invalid text and for a number of images that occurs twice.
std::vector<ImageMixComponent> parse_image_mix(const std::string& text);

/// Parses the value of --volume-size: XxYxZ in voxels, or one number for all three, each from 1 to
/// 99999. Returns {x, y, z}, or nothing for empty text. Throws UserError (kUsage) for invalid text.
std::optional<std::array<int64_t, 3>> parse_volume_size(const std::string& text);

/// Returns the names of data types that --dtype accepts (parse_weight_dtype() in app/process/device.h).
inline const std::vector<std::string>& list_weight_dtype_names() {
  static const std::vector<std::string> names{"float32", "bfloat16", "float16", "fp32", "bf16", "fp16"};
  return names;
}

}  // namespace vlmtrain::app
