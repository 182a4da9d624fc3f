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

/// Throws UserError (kUsage) where --mask-out is given with a model that draws no masks.
void check_draws_masks(const models::Processor& processor, const std::string& checkpoint);

/// Throws UserError (kUsage) where `folder`, which --mask-out names, cannot be written to: it is no folder, or holds
/// more than `generate --mask-out` writes, such as the pictures of a data set.
void check_mask_folder(const std::string& folder);

/// The paths of the masks of one answer in `folder`: mask_1.png, mask_2.png, …
std::vector<std::string> make_mask_paths(const std::string& folder, size_t masks);

/// Writes masks, uint8 [height, width] of their picture's size, as grey PNG files to `files`, which make_mask_paths()
/// named, and beside them overlay.png: the picture with the masks filled and those of `true_masks` outlined. Masks of
/// an earlier answer of more of them are removed.
void write_masks(const std::string& folder, const std::vector<std::string>& files, const at::Tensor& image,
                 const std::vector<at::Tensor>& masks, const std::vector<at::Tensor>& true_masks);

/// Makes the folder, which may be there. Throws UserError (kFailed).
void make_mask_folder(const std::string& folder);

/// The pictures of samples with their masks, the model's filled and the true ones outlined, in a folder: ID.png, and of
/// a sample of several pictures ID_2.png, … Ids become names of files: what is no letter, digit, dot or hyphen is "_".
class MaskOverlays {
 public:
  /// Throws UserError (kUsage) unless the folder is new or empty.
  explicit MaskOverlays(std::string folder);

  /// Nothing where the answer has no masks.
  void add(const io::Record& record, const evaluation::Answer& answer);
  int64_t num_written() const { return num_written_; }

 private:
  /// A name that no sample before has.
  std::string make_unique_name(const std::string& id);

  std::string folder_;
  std::set<std::string> names_;
  int64_t num_written_ = 0;
};

}  // namespace vlmtrain::app
