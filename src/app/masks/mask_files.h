#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/evaluation/evaluated_answer.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::app {

/// Throws UserError (kUsage) if the model predicts no masks. Call it if --mask-out is given.
/// `checkpoint` is the name of the model in the message.
void check_predicts_masks(const models::Processor& processor, const std::string& checkpoint);

/// Throws UserError (kUsage) if `folder`, the value of --mask-out, exists but is not a folder,
/// cannot be read, or contains files that `generate --mask-out` does not write, such as the images
/// of a data set.
void check_mask_folder(const std::string& folder);

/// Returns the paths of `masks` mask files of one answer in `folder`: mask_1.png, mask_2.png, …
std::vector<std::string> make_mask_paths(const std::string& folder, size_t masks);

/// Writes the predicted `masks` of one image as gray PNG files to `files`, the result of
/// make_mask_paths(), and overlay.png: the image with `masks` filled and `true_masks` outlined.
/// `image` is uint8 [3, height, width]; masks are uint8 [height, width] of 0 and 1. `true_masks`
/// may be empty. Creates the folder, and removes mask files of an earlier answer with more masks.
/// Throws UserError (kFailed).
void write_masks(const std::string& folder, const std::vector<std::string>& files, const at::Tensor& image,
                 const std::vector<at::Tensor>& masks, const std::vector<at::Tensor>& true_masks);

/// Creates the folder and its parents unless they exist. Throws UserError (kFailed).
void create_mask_folder(const std::string& folder);

/// A writer of the images of samples with their masks, predicted masks filled and true masks
/// outlined. The files are ID.png for the first image of a sample, and ID_2.png and so on for
/// further images or samples with the same id. Characters of ids other than letters, digits, dots
/// and hyphens become "_".
class MaskOverlayWriter {
 public:
  /// Throws UserError (kUsage) unless the folder does not exist or is empty.
  explicit MaskOverlayWriter(std::string folder);

  /// Writes each image of `record` that has masks in `answer`. Throws UserError.
  void add(const io::Record& record, const evaluation::EvaluatedAnswer& answer);
  /// Returns the number of images written so far.
  int64_t num_written_images() const { return num_written_images_; }

 private:
  /// Returns a file name without extension that is derived from `id` and differs from all earlier
  /// ones.
  std::string make_unique_file_name(const std::string& id);

  std::string folder_;
  std::set<std::string> used_file_names_;
  int64_t num_written_images_ = 0;
};

}  // namespace vlmtrain::app
