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
  uint64_t max_bytes() const override { return input_.size(); }
  bool is_compressed() const override { return false; }

 private:
  VolumeInput input_;
};

}  // namespace

std::unique_ptr<VolumeStream> open_volume_stream(const io::MediaRef& scan) {
  VolumeInput input(scan);
  std::array<uint8_t, 64> prefix{};
  const size_t num_prefix_bytes = std::min<uint64_t>(prefix.size(), input.size());
  if (input.read(std::span(prefix).first(num_prefix_bytes)) == num_prefix_bytes) {
    io::refuse_lfs_pointer(input.name(), {reinterpret_cast<const char*>(prefix.data()), num_prefix_bytes});
  }
  input.seek(0);
  std::array<uint8_t, 2> magic{};
  const bool has_magic = input.read(magic) == magic.size();
  input.seek(0);
  if (has_magic && magic == kGzipMagic) return std::make_unique<GzipStream>(std::move(input));
  return std::make_unique<PlainVolumeStream>(std::move(input));
}

}  // namespace vlmtrain::image
