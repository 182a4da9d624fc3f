#include "app/process/output.h"

#include <langinfo.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

void check_can_overwrite(const OutputFileOption& output) {
  std::error_code error;
  if (output.path.empty() || !std::filesystem::is_regular_file(output.path, error)) return;
  if (std::filesystem::file_size(output.path, error) == 0) return;
  // The content decides, not the path: an input file may have other paths through hard and symbolic
  // links.
  std::string file_head(kSignatureSearchBytes, '\0');
  std::ifstream file(output.path, std::ios::binary);
  file.read(file_head.data(), kSignatureSearchBytes);
  file_head.resize(static_cast<size_t>(file.gcount()));
  if (file_head.find(output.signature) != std::string::npos) return;
  throw usage_error("{}: {} exists but does not contain {}, so it is not overwritten; give another file, or remove it",
                    output.option, output.path, output.description);
}

namespace {

/// Returns the value of an environment variable, or "" if it is not set.
std::string_view view_environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Reads the locale of the environment without changing the locale of the process.
bool is_locale_utf8() {
  const locale_t locale = newlocale(LC_CTYPE_MASK, "", nullptr);
  if (locale == nullptr) return false;
  const bool is_utf8 = std::string_view(nl_langinfo_l(CODESET, locale)) == "UTF-8";
  freelocale(locale);
  return is_utf8;
}

}  // namespace

report::TextStyle detect_stdout_style() {
  report::TextStyle style;
  const bool is_dumb_terminal = view_environment_variable("TERM") == "dumb";
  const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  style.color = is_terminal && !is_dumb_terminal && view_environment_variable("NO_COLOR").empty();
  style.unicode = is_locale_utf8() && !(is_terminal && is_dumb_terminal);
  winsize size{};
  if (is_terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) style.width = size.ws_col;
  return style;
}

}  // namespace vlmtrain::app
