#pragma once

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
  std::string image_mix;   ///< see parse_image_mix() (flag_values.h)
  std::optional<int64_t> num_volumes;
  std::string volume_size;              ///< in voxels, see parse_volume_size() (flag_values.h)
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

/// LoRA rank of `--finetune lora` without lora.rank: the rank that messages and docs/lora.md
/// suggest.
inline constexpr int64_t kDefaultLoraRank = 16;

/// The arguments of `vlmtrain plan`.
struct PlanArguments {
  std::string gpu;
  std::optional<double> gpu_gigabytes;
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
  OptionsArguments options;
  ReportArguments report;
};

}  // namespace vlmtrain::app
