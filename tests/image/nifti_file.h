#pragma once

#include <zlib.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain {

/// A NIfTI file whose header fields can have any value, at the offsets of nifti1.h and nifti2.h.
class NiftiFile {
 public:
  enum Version { k1, k2 };

  NiftiFile(Version version, const std::vector<int64_t>& dim, int16_t datatype, bool big_endian = false)
      : version_(version), big_endian_(big_endian), bytes_(version == k1 ? 352 : 544, '\0') {
    put<int32_t>(0, version == k1 ? 348 : 540);
    put_text(version == k1 ? 344 : 4, version == k1 ? std::string_view("n+1\0", 4) : "n+2\0\r\n\032\n");
    put<int16_t>(version == k1 ? 70 : 12, datatype);
    set_dim(0, std::ssize(dim));
    for (size_t i = 0; i < dim.size(); ++i) set_dim(i + 1, dim[i]);
    for (size_t i = 0; i < 4; ++i) set_pixdim(i, 1);
    set_voxel_offset(static_cast<double>(bytes_.size()));
  }

  void set_dim(size_t axis, int64_t value) {
    if (version_ == k1) return put<int16_t>(40 + 2 * axis, static_cast<int16_t>(value));
    put<int64_t>(16 + 8 * axis, value);
  }
  void set_pixdim(size_t axis, double value) { put_floating(version_ == k1 ? 76 : 104, axis, value); }
  void set_voxel_offset(double value) {
    if (version_ == k1) return put<float>(108, static_cast<float>(value));
    put<int64_t>(168, static_cast<int64_t>(value));
  }
  void set_scaling(double slope, double intercept) {
    put_floating(version_ == k1 ? 112 : 176, 0, slope);
    put_floating(version_ == k1 ? 112 : 176, 1, intercept);
  }
  void set_qform(int16_t code, std::array<double, 3> quaternion, double qfac = 1) {
    put_code(version_ == k1 ? 252 : 344, code);
    for (size_t i = 0; i < 3; ++i) put_floating(version_ == k1 ? 256 : 352, i, quaternion[i]);
    set_pixdim(0, qfac);
  }
  void set_sform(int16_t code, const std::array<double, 9>& rows) {
    put_code(version_ == k1 ? 254 : 348, code);
    for (size_t i = 0; i < 9; ++i) put_floating(version_ == k1 ? 280 : 400, i / 3 * 4 + i % 3, rows[i]);
  }
  void put_text(size_t offset, std::string_view text) { bytes_.replace(offset, text.size(), text); }

  template <class T>
  void add_voxel(T value) {
    bytes_.append(sizeof(T), '\0');
    put(bytes_.size() - sizeof(T), value);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  template <class T>
  void put(size_t offset, T value) {
    std::array<char, sizeof(T)> value_bytes;
    std::memcpy(value_bytes.data(), &value, sizeof(T));
    for (size_t i = 0; i < sizeof(T); ++i) bytes_[offset + i] = value_bytes[big_endian_ ? sizeof(T) - 1 - i : i];
  }
  void put_floating(size_t begin, size_t index, double value) {
    if (version_ == k1) return put(begin + 4 * index, static_cast<float>(value));
    put(begin + 8 * index, value);
  }
  void put_code(size_t offset, int16_t value) {
    if (version_ == k1) return put(offset, value);
    put<int32_t>(offset, value);
  }

  Version version_;
  bool big_endian_;
  std::string bytes_;
};

inline io::MediaRef make_scan(std::string bytes, const char* name = "scan.nii") {
  io::MediaRef medium(name);
  medium.bytes = std::make_shared<const std::string>(std::move(bytes));
  return medium;
}

/// Returns the bytes as one gzip member.
inline std::string gzip(std::string_view bytes) {
  z_stream zlib{};
  deflateInit2(&zlib, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string result(deflateBound(&zlib, bytes.size()), '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  zlib.avail_in = static_cast<uInt>(bytes.size());
  zlib.next_out = reinterpret_cast<Bytef*>(result.data());
  zlib.avail_out = static_cast<uInt>(result.size());
  deflate(&zlib, Z_FINISH);
  result.resize(zlib.total_out);
  deflateEnd(&zlib);
  return result;
}

}  // namespace vlmtrain
