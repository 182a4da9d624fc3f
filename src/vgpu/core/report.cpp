#include "vgpu/core/report.h"

#include <cstdio>
#include <string>

namespace vlmtrain::vgpu {

void report(std::initializer_list<std::string_view> pieces) {
  std::string line("virtual GPU: ");
  for (const auto piece : pieces) line.append(piece);
  line.push_back('\n');
  std::fputs(line.c_str(), stderr);
}

}  // namespace vlmtrain::vgpu
