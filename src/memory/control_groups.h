#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace vlmtrain::memory {

/// A folder in which the kernel shows a control group.
struct ControlGroupFolder {
  std::filesystem::path path;
  bool is_v2 = true;  ///< version 2, whose files are called otherwise than version 1's
};

/// The groups that bound this process's use of what `controller` (memory, cpu) counts, from the outermost that is seen
/// here to its own, on a machine whose proc/ and sys/ are in `root`.
std::vector<ControlGroupFolder> control_groups(const std::filesystem::path& root, std::string_view controller);

}  // namespace vlmtrain::memory
