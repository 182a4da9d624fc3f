#pragma once

#include <string>

#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::app {

/// An option that names a file for a command's result.
struct OutputFileOption {
  std::string option;       ///< the name of the option, such as `--answers`
  std::string path;         ///< the value of the option; empty if it was not given
  std::string description;  ///< a phrase for the content, such as `answers of eval`
  std::string signature;    ///< text that all files with such content have in their first kSignatureSearchBytes bytes
};

/// Number of bytes at the start of a file in which the signature is searched. Not tuned.
inline constexpr int kSignatureSearchBytes = 4096;

/// Throws UserError (kUsage) if `output.path` is a file with other content than
/// `output.description`, such as a data set or configuration that was given by mistake. Empty files
/// and non-regular files may be overwritten. Call it before the work whose result is written.
void check_can_overwrite(const OutputFileOption& output);

/// Returns the style of text on stdout: in color on a terminal, unless NO_COLOR is set
/// (no-color.org) or TERM is dumb; with block characters in a UTF-8 locale; as wide as the
/// terminal.
report::TextStyle detect_stdout_style();

}  // namespace vlmtrain::app
