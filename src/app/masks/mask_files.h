#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::app {

/// Throws UserError (kUsage) where --mask-out is given and the model predicts no masks.
void check_draws_masks(const models::Processor& processor, const std::string& checkpoint);

/// Throws UserError (kUsage) where `folder` of --mask-out is no folder, or holds files that
/// `generate --mask-out` does not write, such as the images of a data set.
void check_mask_folder(const std::string& folder);

/// Returns the paths of the masks of one answer in `folder`: mask_1.png, mask_2.png, …
std::vector<std::string> make_mask_paths(const std::string& folder, size_t masks);

/// Writes masks, uint8 [height, width] of their image's size, as gray PNG files to `files`, the
/// result of make_mask_paths(), and overlay.png: the image with `masks` filled and `true_masks`
/// outlined. Removes further masks of an earlier answer.
void write_masks(const std::string& folder, const std::vector<std::string>& files, const at::Tensor& image,
                 const std::vector<at::Tensor>& masks, const std::vector<at::Tensor>& true_masks);

/// Creates the folder unless it exists. Throws UserError (kFailed).
void make_mask_folder(const std::string& folder);

/// Writer of the images of samples with their masks, predicted ones filled and true ones outlined:
/// ID.png in a folder, and further images of a sample as ID_2.png, … Characters of ids other than
/// letters, digits, dots and hyphens become "_".
class MaskOverlays {
 public:
  /// Throws UserError (kUsage) unless the folder is new or empty.
  explicit MaskOverlays(std::string folder);

  /// Writes the images of an answer; does nothing where it has no masks.
  void add(const io::Record& record, const evaluation::Answer& answer);
  int64_t num_written() const { return num_written_; }

 private:
  /// Returns a name that no earlier sample has.
  std::string make_unique_name(const std::string& id);

  std::string folder_;
  std::set<std::string> names_;
  int64_t num_written_ = 0;
};

}  // namespace vlmtrain::app
