#include "image/volume/volume_stream.h"

#include <algorithm>
#include <array>
#include <span>

#include "image/volume/gzip_stream.h"
#include "image/volume/volume_input.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/lfs_pointer.h"

namespace vlmtrain::image {
namespace {

class PlainVolumeStream final : public VolumeStream {
 public:
  explicit PlainVolumeStream(VolumeInput input) : input_(std::move(input)) {}

  const std::string& name() const override { return input_.name(); }
  void read(std::span<uint8_t> out) override {
    if (input_.read(out) != out.size()) throw data_error("{}: the scan is cut off; copy or convert it again", name());
  }
  void skip(uint64_t bytes) override { input_.seek(input_.position() + bytes); }
  void finish() override {}
  uint64_t most_bytes() const override { return input_.size(); }
  bool is_compressed() const override { return false; }

 private:
  VolumeInput input_;
};

}  // namespace

std::unique_ptr<VolumeStream> open_volume_stream(const io::Medium& scan) {
  VolumeInput input(scan);
  std::array<uint8_t, 64> begin{};
  const size_t known = std::min<uint64_t>(begin.size(), input.size());
  if (input.read(std::span(begin).first(known)) == known) {
    io::refuse_lfs_pointer(input.name(), {reinterpret_cast<const char*>(begin.data()), known});
  }
  input.seek(0);
  std::array<uint8_t, 2> first{};
  const bool has_both = input.read(first) == first.size();
  input.seek(0);
  if (has_both && first == kGzipMagic) return std::make_unique<GzipStream>(std::move(input));
  return std::make_unique<PlainVolumeStream>(std::move(input));
}

}  // namespace vlmtrain::image
