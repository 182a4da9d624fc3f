#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/ledger.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/weights_to_save.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

/// All that a checkpoint of a run consists of, to be written once (RunCheckpoints::write). A tensor is let go as soon
/// as it is written.
struct CheckpointContent {
  int64_t step = 0;
  std::optional<int64_t> best_step;  ///< as of this step
  models::CheckpointContents model;
  io::LazyTensors optimizer;
  std::string ledger, state;  ///< trainer_state/ledger.json, state.json
};

/// Where the values are that training changes.
enum class ValueStorage {
  kInPlace,  ///< has to be written before the next step
  kCopied,   ///< in the host's memory, for another thread while training goes on
};

/// Weights are saved as the base has them (models/weights_to_save.h), `dtype` as SaveOptions::dtype. What is lost by
/// that of the fp32 values of trained weights is kept in trainer_state, so that the run goes on with the same bits.
/// kCopied: takes compute_copy_bytes() of the host's memory, and throws what LibTorch throws where it does not get
/// them.
CheckpointContent make_checkpoint_content(const RunState& state, const models::VisionLanguageModel& model,
                                          const engine::AdamW& optimizer, const data::Ledger& ledger,
                                          const models::BaseWeights& base, std::optional<at::ScalarType> dtype,
                                          ValueStorage values);

/// Of the values that training changes: each once, however often it is written.
int64_t compute_copy_bytes(const engine::AdamW& optimizer);

/// That writing takes beside them, at most: one tensor in the type that it is saved in.
int64_t compute_write_buffer_bytes(const models::VisionLanguageModel& model);

/// Of a folder trainer_state: optimizer.safetensors, or of ranks that share the optimizer's state a file each,
/// optimizer-00001-of-00004.safetensors and so on. Throws UserError (kBadData) that names a part that is missing.
std::vector<std::filesystem::path> find_optimizer_files(const std::filesystem::path& trainer_state);

/// These, opened, each as all its headers say. Throws UserError (kBadData) that names a part which is another's, or of
/// another step than the first.
std::vector<io::SafetensorsFile> open_optimizer_files(const std::filesystem::path& trainer_state);
/// What an error calls them all.
std::string format_optimizer_files_name(const std::filesystem::path& trainer_state);

/// Of a part's file: what ties it to its place and to the others.
std::map<std::string, std::string> make_shard_metadata(int64_t rank, int64_t step);

/// `count` 1: the one file.
std::string make_optimizer_file_name(int64_t rank, int64_t count);

}  // namespace vlmtrain::train
