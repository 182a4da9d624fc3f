#include "app/output_file.h"

#include <filesystem>
#include <fstream>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

void check_overwrite(const OutputFile& output) {
  std::error_code error;
  if (output.path.empty() || !std::filesystem::is_regular_file(output.path, error)) return;
  if (std::filesystem::file_size(output.path, error) == 0) return;
  // Looked at by its content: an input has many names, such as those of hard and symbolic links.
  std::string head(kSignatureBytes, '\0');
  std::ifstream file(output.path, std::ios::binary);
  file.read(head.data(), kSignatureBytes);
  head.resize(static_cast<size_t>(file.gcount()));
  if (head.find(output.signature) != std::string::npos) return;
  throw usage_error("{}: {} exists and does not hold {}, so it is not overwritten; name another file, or remove it",
                    output.option, output.path, output.description);
}

}  // namespace vlmtrain::app
