#pragma once

#include <string>

#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::app {

/// An option that names a file for a command's result.
struct OutputFile {
  std::string option;       ///< as it is typed: `--answers`
  std::string path;         ///< empty: the option was not given
  std::string description;  ///< the result in words: `answers of eval`
  std::string signature;    ///< text within the first kSignatureBytes bytes of every such result, and of no input
};

inline constexpr int kSignatureBytes = 4096;

/// Throws UserError (kUsage) where the path is a file that is no earlier result of the option, such
/// as a checkpoint, data set or configuration. Empty files and non-regular files may be written to.
void check_overwrite(const OutputFile& output);

/// Returns how stdout shows text: color on a terminal unless NO_COLOR is set (no-color.org) or TERM
/// is dumb, block characters in a UTF-8 locale, the terminal's width.
report::TextStyle detect_stdout_style();

}  // namespace vlmtrain::app
