#pragma once

#include <string>

#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::app {

/// A file that an option names for a command's result.
struct OutputFile {
  std::string option;       ///< as it is typed: `--answers`
  std::string path;         ///< empty: the option was not given
  std::string description;  ///< the result in words: `answers of eval`
  std::string signature;    ///< stands within the first kSignatureBytes bytes of every such result, and in no input's
};

inline constexpr int kSignatureBytes = 4096;

/// Throws UserError (kUsage) where the path is a file already that is no earlier result of the option: a checkpoint,
/// data set or configuration is not replaced. An empty file, and what is no regular file, may be written to.
void check_overwrite(const OutputFile& output);

/// How stdout can show text: colour on a terminal unless NO_COLOR is set (no-color.org) or TERM is dumb, block
/// characters where the locale is UTF-8, the terminal's width.
report::TextStyle detect_stdout_style();

}  // namespace vlmtrain::app
