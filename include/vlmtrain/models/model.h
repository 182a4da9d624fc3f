#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/models/recompute_blocks.h"
#include "vlmtrain/nn/key_value_cache.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// What the vision side gives of some tiles or patches.
struct ImageFeatures {
  at::Tensor features{};  ///< [image tokens, hidden], in the order of the pixels; undefined without images
  /// What is added to the hidden states of the same tokens behind text block 0, 1 …: each [image tokens, hidden].
  std::vector<at::Tensor> deepstack_features{};
  /// On request, what enters the projector: [rows, the tower's width], a row a patch in the order of the pixels (and
  /// one for the class token where a family's projector takes it).
  at::Tensor dense{};

  /// Those of `count` image tokens from `first` on, without dense features.
  ImageFeatures narrow(int64_t first, int64_t count) const;
  /// All of them, one behind the other; parts without images are passed over.
  static ImageFeatures join(const std::vector<ImageFeatures>& parts);
};

/// What is wanted of a forward pass.
struct OutputRequest {
  at::Tensor positions;                ///< int64 [n]: rows whose hidden state behind the final norm is wanted
  std::vector<int64_t> text_blocks{};  ///< blocks of the language model behind which the states of all rows are wanted
  bool dense_features = false;         ///< ImageFeatures::dense
};

struct ModelOutput {
  at::Tensor hidden;                      ///< [n, hidden]
  std::vector<at::Tensor> text_blocks{};  ///< [tokens, hidden] for each that was asked for, before anything is added
  at::Tensor dense_features{};            ///< undefined unless asked for, and without images
};

/// A tensor of a checkpoint.
struct ExternalWeight {
  std::filesystem::path folder;
  std::string name;
};

/// What a vision tower sees in one pass.
struct VisionInput {
  at::Tensor pixel_values;                     ///< as data::MicroBatch::pixel_values, of the family's type and shape
  std::vector<data::PatchGrid> grids;          ///< as data::MicroBatch::grids, on the host
  std::vector<nn::DropoutSegment> units = {};  ///< as data::MicroBatch::pixel_units; empty: nothing is dropped
  at::Tensor modalities = {};  ///< int64 [rows], the modality of each row of pixels; undefined: of a family that has
                               ///< none, or none is known
};

/// In how many passes the tower sees it, with at most `rows_per_pass` rows of pixels each (0: all); 0 of no pixels.
int64_t count_vision_passes(const VisionInput& vision, int64_t rows_per_pass);

/// A vision-language model on one device. No call reads a value back from the device, so that the same code runs on the
/// CPU, on CUDA and on a virtual card. Not thread-safe.
class VisionLanguageModel {
 public:
  explicit VisionLanguageModel(nn::ParameterSettings settings) : parameters_(std::move(settings)) {}
  virtual ~VisionLanguageModel() = default;
  VisionLanguageModel(const VisionLanguageModel&) = delete;
  VisionLanguageModel& operator=(const VisionLanguageModel&) = delete;

  /// Vision tower and projector. A family that cannot give dense features says so with an InternalError.
  virtual ImageFeatures get_image_features(const VisionInput& vision, bool with_dense) const = 0;

  /// The text model's part of what is wanted of the packed stream. `image_features` take the rows
  /// batch.image_positions; without any for a batch without images. `cache`: null, or in generation what it holds of
  /// the batch's sequences; it takes in the batch.
  virtual ModelOutput hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                    const OutputRequest& request, nn::KeyValueCache* cache) const = 0;

  /// Whether it draws masks of pictures (data::Masks).
  virtual bool predicts_masks() const { return false; }
  /// Draws them: `hidden` [masks, hidden] are the states at masks.positions → logits, fp32 [masks, height, width] over
  /// the whole squares of pixels, of another size than these. At most `images_per_pass` (0: all) pass the mask
  /// encoder at a time. REQUIRES: predicts_masks(), masks.count() > 0.
  virtual at::Tensor mask_logits(const data::MaskBatch& masks, const at::Tensor& hidden, int64_t images_per_pass) const;

  /// The projection to the vocabulary, [vocabulary, hidden]; logits are hidden · weightᵀ.
  virtual const at::Tensor& output_weight() const = 0;

  virtual int64_t vision_blocks() const = 0;
  virtual int64_t language_blocks() const = 0;

  /// What the model's checkpoint calls a parameter.
  virtual std::string checkpoint_name(const std::string& parameter) const { return parameter; }
  /// Where its weights are loaded from, if not from the model's own checkpoint. Throws UserError (kBadData) where they
  /// are nowhere. A saved checkpoint has all weights, under checkpoint_name().
  virtual std::optional<ExternalWeight> external_weight(const std::string& parameter) const;
  /// Adds to the config.json of a saved checkpoint what the model took from elsewhere.
  virtual void complete_config(nlohmann::ordered_json& config) const;
  /// Adds to the tensors of a saved checkpoint what it has beside the parameters: tables that are computed.
  virtual void complete_weights(std::vector<std::pair<std::string, at::Tensor>>& weights) const;

  /// image_features() of all rows of pixels, with at most vision_tiles_per_pass() of them in the tower at a time, but
  /// never less than one frame of a grid; none where there are no pixels.
  ImageFeatures get_all_image_features(const VisionInput& vision, bool with_dense = false) const;
  /// The same with another number of rows at a time; 0: all.
  ImageFeatures get_all_image_features(const VisionInput& vision, int64_t rows_per_pass, bool with_dense) const;
  /// get_all_image_features() and hidden_states() of a batch.
  ModelOutput forward(const data::MicroBatch& batch, const OutputRequest& request) const;

  const nn::ParameterStore& parameters() const { return parameters_; }
  nn::ParameterStore& parameters() { return parameters_; }
  void set_recompute(RecomputeBlocks blocks) { recompute_ = blocks; }
  const RecomputeBlocks& recompute() const { return recompute_; }
  /// 0: all that a micro-batch has. Fewer need less memory for temporaries; the features are the same.
  void set_vision_tiles_per_pass(int64_t tiles) { vision_tiles_per_pass_ = tiles; }
  int64_t vision_tiles_per_pass() const { return vision_tiles_per_pass_; }
  /// Of the tower, in forward(batch).
  int64_t num_vision_passes(const data::MicroBatch& batch) const {
    return count_vision_passes({batch.pixel_values, batch.grids}, vision_tiles_per_pass_);
  }

 private:
  nn::ParameterStore parameters_;
  RecomputeBlocks recompute_;
  int64_t vision_tiles_per_pass_ = 0;
};

/// The parts of a model whose weights stay as they are.
struct FrozenParts {
  bool vision_tower = false;
  bool projector = false;
  bool language_model = false;  ///< embeddings and output included
  bool mask_encoder = false;    ///< of a family that draws masks
};

/// Lets gradients be computed for what is not frozen, and for nothing else; of a model with LoRA for the adapters
/// (and modules_to_save) of what is not frozen. Returns whether anything is left to train.
bool freeze(VisionLanguageModel& model, const FrozenParts& frozen);

}  // namespace vlmtrain::models
