#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::app {

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
