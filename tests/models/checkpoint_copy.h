#pragma once

#include <filesystem>
#include <string>

#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::models {

/// Copy of a parity case's checkpoint that a test edits.
class CheckpointCopy {
 public:
  explicit CheckpointCopy(const std::string& case_name) : case_(case_name) {
    std::filesystem::copy(case_.checkpoint(), folder_.path());
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  const parity::Case& origin() const { return case_; }

  /// Edits one of its JSON files.
  template <class Change>
  void edit(const std::string& file, const Change& change) const {
    auto json = io::read_json(path() / file);
    change(json);
    io::write_file(path() / file, json.dump());
  }

 private:
  parity::Case case_;
  parity::TemporaryFolder folder_;
};

}  // namespace vlmtrain::models
