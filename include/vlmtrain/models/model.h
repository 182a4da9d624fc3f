#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/model_settings.h"
#include "vlmtrain/nn/generation_cache.h"
#include "vlmtrain/nn/layers/output_projection.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// The output of the vision tower and the projector for some rows of pixel_values (tiles or
/// patches, depending on the family).
struct ImageFeatures {
  at::Tensor features{};  ///< [image tokens, hidden], in the order of the pixels; undefined without images
  /// DeepStack features: deepstack_features[i], [image tokens, hidden], is added to the hidden
  /// states of the image tokens after text block i.
  std::vector<at::Tensor> deepstack_features{};
  /// The input of the projector, [rows, tower width], if requested; else undefined. Has one row per
  /// patch in the order of the pixels, and a row per class token if the family's projector takes
  /// it.
  at::Tensor patch_features{};

  /// Returns the features of `count` image tokens from `first` on, without `patch_features`.
  ImageFeatures narrow(int64_t first, int64_t count) const;
  /// Returns the concatenation of `parts` along the tokens. Skips parts without images.
  static ImageFeatures concat(const std::vector<ImageFeatures>& parts);
};

/// The tensors to compute in a forward pass.
struct OutputRequest {
  at::Tensor positions;                       ///< int64 [n], tokens of the batch to return final-norm hidden states for
  std::vector<int64_t> text_block_indices{};  ///< language model blocks to return the outputs of, for all tokens
  bool with_patch_features = false;           ///< whether to return ImageFeatures::patch_features
};

/// The output of a forward pass: the tensors of an OutputRequest.
struct ModelOutput {
  at::Tensor hidden_states;  ///< [n, hidden], after the final norm, at OutputRequest::positions
  /// [tokens, hidden] for each requested block, before DeepStack features are added.
  std::vector<at::Tensor> text_block_outputs{};
  at::Tensor patch_features{};  ///< ImageFeatures::patch_features; undefined if not requested or without images
};

/// A tensor of another checkpoint.
struct ExternalWeight {
  std::filesystem::path folder;  ///< the other checkpoint
  std::string name;              ///< in its weight files
};

/// The input of a vision tower in one pass.
struct VisionInput {
  at::Tensor pixel_values;                   ///< as data::MicroBatch::pixel_values, in the family's dtype and shape
  std::vector<data::PatchGrid> patch_grids;  ///< as data::MicroBatch::patch_grids, on the host
  std::vector<nn::DropoutSegment> dropout_segments =
      {};  ///< as data::MicroBatch::pixel_dropout_segments; empty: no dropout
  /// int64 [rows], modality of each row of pixels; undefined if unknown or not supported by the
  /// family.
  at::Tensor modalities = {};
};

/// Returns the number of passes through the tower with at most `rows_per_pass` rows of pixels each
/// (0: all); 0 without pixels.
int64_t count_vision_passes(const VisionInput& vision, int64_t rows_per_pass);

/// Splits `vision` into passes of at most `rows_per_pass` rows of pixels (0: a single pass), in
/// order. A frame of a grid is never split, so a pass may have more rows.
std::vector<VisionInput> split_vision_passes(const VisionInput& vision, int64_t rows_per_pass);

/// A vision-language model on one device. No call reads a value back from the device, so the same
/// code runs on the CPU, on CUDA and on the virtual GPU. Not thread-safe.
class VisionLanguageModel {
 public:
  explicit VisionLanguageModel(nn::ParameterSettings settings) : parameters_(std::move(settings)) {}
  virtual ~VisionLanguageModel() = default;
  VisionLanguageModel(const VisionLanguageModel&) = delete;
  VisionLanguageModel& operator=(const VisionLanguageModel&) = delete;

  /// Computes the vision tower and the projector in one pass. Throws InternalError if
  /// `with_patch_features` is set for a family without patch features.
  virtual ImageFeatures get_image_features(const VisionInput& vision, bool with_patch_features) const = 0;

  /// Computes the language model on a packed batch. `image_features` replace the embeddings of the
  /// tokens at batch.image_token_positions; they are empty for a batch without images. `cache` is
  /// null except in generation. It has the keys and values of the preceding tokens of the batch's
  /// sequences. The call appends the keys and values of the batch.
  virtual ModelOutput compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                            const OutputRequest& request, nn::GenerationCache* cache) const = 0;

  /// Returns whether the model predicts masks (data::SegmentationMasks).
  virtual bool predicts_masks() const { return false; }
  /// Returns mask logits, fp32 [masks, height, width]. They cover the mask encoder's square input
  /// at another resolution. `hidden` [masks, hidden] are the hidden states at
  /// masks.prediction_positions. The mask encoder processes at most `images_per_pass` images at a
  /// time (0: all). REQUIRES: predicts_masks(), masks.count() > 0.
  virtual at::Tensor compute_mask_logits(const data::MaskBatch& masks, const at::Tensor& hidden,
                                         int64_t images_per_pass) const;

  /// Returns the projection from hidden states to logits. The model owns its weight.
  virtual nn::OutputProjection output_projection() const = 0;
  /// Returns the weight of the output projection, [vocabulary, hidden].
  const at::Tensor& output_weight() const { return output_projection().weight; }

  /// Return the number of blocks of the vision tower and of the language model, the units of
  /// activation checkpointing (RecomputeBlockCounts).
  virtual int64_t num_vision_blocks() const = 0;
  virtual int64_t num_language_blocks() const = 0;

  /// Returns the name of a parameter's tensor in checkpoints.
  virtual std::string get_checkpoint_tensor_name(const std::string& parameter) const { return parameter; }
  /// Returns the tensor that a parameter is loaded from if it is in another checkpoint; else
  /// nothing. A saved checkpoint has all weights, named by get_checkpoint_tensor_name(). Throws
  /// UserError (kBadData) if the other checkpoint does not exist.
  virtual std::optional<ExternalWeight> find_external_weight(const std::string& parameter) const;
  /// Adds the settings that the model read from other files to the config.json of a saved
  /// checkpoint.
  virtual void add_saved_settings(nlohmann::ordered_json& config) const;
  /// Adds computed tables, which are not parameters, to the tensors of a saved checkpoint.
  virtual void add_computed_tables(std::vector<std::pair<std::string, at::Tensor>>& weights) const;

  /// Computes get_image_features() in passes of at most vision_tiles_per_pass() rows of pixels. A
  /// frame of a grid is never split, so a pass may have more rows. Returns empty features without
  /// pixels.
  ImageFeatures get_all_image_features(const VisionInput& vision, bool with_patch_features = false) const;
  /// Computes the same with at most `rows_per_pass` rows per pass (0: all).
  ImageFeatures get_all_image_features(const VisionInput& vision, int64_t rows_per_pass,
                                       bool with_patch_features) const;
  /// Computes get_all_image_features() and compute_hidden_states() of a batch.
  ModelOutput forward(const data::MicroBatch& batch, const OutputRequest& request) const;

  const nn::ParameterStore& parameters() const { return parameters_; }
  nn::ParameterStore& parameters() { return parameters_; }
  void set_recompute_block_counts(RecomputeBlockCounts blocks) { recompute_block_counts_ = blocks; }
  const RecomputeBlockCounts& recompute_block_counts() const { return recompute_block_counts_; }
  /// Sets the maximum rows of pixels per vision pass; 0: all rows of a micro-batch. Fewer rows need
  /// less memory for temporaries. The features do not change.
  void set_vision_tiles_per_pass(int64_t tiles) { vision_tiles_per_pass_ = tiles; }
  int64_t vision_tiles_per_pass() const { return vision_tiles_per_pass_; }
  /// Returns the number of vision passes in forward(batch).
  int64_t num_vision_passes(const data::MicroBatch& batch) const {
    return count_vision_passes({batch.pixel_values, batch.patch_grids}, vision_tiles_per_pass_);
  }

 private:
  nn::ParameterStore parameters_;
  RecomputeBlockCounts recompute_block_counts_;
  int64_t vision_tiles_per_pass_ = 0;
};

/// Enables gradients for the parts that are not frozen, and disables all others. With LoRA, enables
/// only adapters and modules_to_save of these parts. Returns whether any parameter is trainable.
bool freeze_parts(VisionLanguageModel& model, const FrozenParts& frozen);

}  // namespace vlmtrain::models
