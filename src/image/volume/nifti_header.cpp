#include "image/volume/nifti_header.h"

#include <nifti2_io.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>

#include "image/volume/affine.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// The advice of messages about damaged headers.
constexpr std::string_view kDamagedHeaderHint = "copy or convert the scan again";
/// The sizes of the headers, which are also the values of their first field, sizeof_hdr.
constexpr int32_t kNifti1HeaderBytes = sizeof(nifti_1_header), kNifti2HeaderBytes = sizeof(nifti_2_header);

/// Four bytes after the header that state whether extensions follow before the voxels.
constexpr int64_t kExtenderBytes = 4;

/// The fields of a header before validation, in this machine's byte order.
struct RawNiftiHeader {
  nifti_2_header fields;
  double voxel_offset;   // vox_offset, which NIfTI-1 stores as a float
  int64_t header_bytes;  // size of the header in the file
  bool is_byte_swapped;  // the file's byte order differs from this machine's
};

std::string_view to_string_view(std::span<const char> field) {
  return std::string_view(field.data(), field.size());
}

/// `detail`: the end of the message, with its punctuation.
UserError make_not_nifti_error(const std::string& name, std::string_view detail) {
  return data_error("{}: not a NIfTI file (.nii or .nii.gz){}", name, detail);
}

UserError make_hdr_img_pair_error(const std::string& name) {
  return data_error(
      "{}: a header of a file pair (.hdr and .img), which is not supported; convert the pair to one file, in Python: "
      "nibabel.save(nibabel.load(\"scan.hdr\"), \"scan.nii.gz\")",
      name);
}

/// Returns a NIfTI-2 header with the fields of a NIfTI-1 header that this file uses.
nifti_2_header convert_to_nifti2(const nifti_1_header& nifti1) {
  nifti_2_header nifti2{};
  nifti2.datatype = nifti1.datatype;
  std::copy_n(nifti1.dim, 8, nifti2.dim);
  std::copy_n(nifti1.pixdim, 8, nifti2.pixdim);
  nifti2.scl_slope = nifti1.scl_slope;
  nifti2.scl_inter = nifti1.scl_inter;
  nifti2.qform_code = nifti1.qform_code;
  nifti2.sform_code = nifti1.sform_code;
  nifti2.quatern_b = nifti1.quatern_b;
  nifti2.quatern_c = nifti1.quatern_c;
  nifti2.quatern_d = nifti1.quatern_d;
  std::copy_n(nifti1.srow_x, 4, nifti2.srow_x);
  std::copy_n(nifti1.srow_y, 4, nifti2.srow_y);
  std::copy_n(nifti1.srow_z, 4, nifti2.srow_z);
  return nifti2;
}

RawNiftiHeader parse_nifti1(nifti_1_header header, const std::string& name) {
  const bool is_byte_swapped = header.sizeof_hdr != kNifti1HeaderBytes;
  if (is_byte_swapped) nifti_swap_as_nifti1(&header);
  const std::string_view magic = to_string_view(header.magic);
  if (magic.starts_with("ni1")) throw make_hdr_img_pair_error(name);
  if (!magic.starts_with("n+1")) {
    throw make_not_nifti_error(name,
                               ", possibly Analyze 7.5, which does not define right and left; convert it to NIfTI");
  }
  return {convert_to_nifti2(header), header.vox_offset, kNifti1HeaderBytes, is_byte_swapped};
}

RawNiftiHeader parse_nifti2(nifti_2_header header, const std::string& name) {
  const bool is_byte_swapped = header.sizeof_hdr != kNifti2HeaderBytes;
  if (is_byte_swapped) nifti_swap_as_nifti2(&header);
  const std::string_view magic = to_string_view(header.magic);
  if (magic.starts_with("ni2")) throw make_hdr_img_pair_error(name);
  if (!magic.starts_with("n+2")) throw make_not_nifti_error(name, "");
  return {header, static_cast<double>(header.vox_offset), kNifti2HeaderBytes, is_byte_swapped};
}

/// Returns whether bytes, at least 132, start a DICOM file.
bool is_dicom(std::span<const uint8_t> bytes) {
  constexpr size_t kPreambleBytes = 128;
  return std::memcmp(bytes.data() + kPreambleBytes, "DICM", 4) == 0;
}

/// Reads the header at the start of the stream. Throws UserError (kBadData) for other formats.
RawNiftiHeader read_raw_header(VolumeStream& stream) {
  const std::string& name = stream.name();
  if (!stream.is_compressed() && stream.max_decompressed_bytes() < kNifti1HeaderBytes)
    throw make_not_nifti_error(name, ": the file is shorter than a header");
  std::array<uint8_t, kNifti2HeaderBytes> bytes{};
  stream.read(std::span(bytes).first(kNifti1HeaderBytes));
  int32_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  const auto byte_swapped_size = static_cast<int32_t>(__builtin_bswap32(static_cast<uint32_t>(size)));
  if (size == kNifti1HeaderBytes || byte_swapped_size == kNifti1HeaderBytes) {
    nifti_1_header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    return parse_nifti1(header, name);
  }
  if (size == kNifti2HeaderBytes || byte_swapped_size == kNifti2HeaderBytes) {
    if (!stream.is_compressed() && stream.max_decompressed_bytes() < kNifti2HeaderBytes) {
      throw make_not_nifti_error(name, ": the file is shorter than a header");
    }
    stream.read(std::span(bytes).subspan(kNifti1HeaderBytes));
    nifti_2_header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    return parse_nifti2(header, name);
  }
  if (is_dicom(bytes)) {
    throw make_not_nifti_error(name, " but DICOM; convert the folder of the series first: dcm2niix -z y -o OUT FOLDER");
  }
  throw make_not_nifti_error(name, "");
}

VoxelDtype to_voxel_dtype(int datatype, const std::string& name) {
  switch (datatype) {
    case DT_UINT8:
      return VoxelDtype::kUint8;
    case DT_INT8:
      return VoxelDtype::kInt8;
    case DT_UINT16:
      return VoxelDtype::kUint16;
    case DT_INT16:
      return VoxelDtype::kInt16;
    case DT_UINT32:
      return VoxelDtype::kUint32;
    case DT_INT32:
      return VoxelDtype::kInt32;
    case DT_UINT64:
      return VoxelDtype::kUint64;
    case DT_INT64:
      return VoxelDtype::kInt64;
    case DT_FLOAT32:
      return VoxelDtype::kFloat32;
    case DT_FLOAT64:
      return VoxelDtype::kFloat64;
    default:
      throw data_error(
          "{}: voxels have the data type {} ({}), which is not supported; save the scan with one real number per "
          "voxel, such as int16 or float32",
          name, datatype, nifti_datatype_to_string(datatype));
  }
}

/// Reads and validates header.size and header.num_frames.
void read_shape(const nifti_2_header& fields, const std::string& name, NiftiHeader& header) {
  const int64_t num_axes = fields.dim[0];
  if (num_axes < 1 || num_axes > 7) {
    throw data_error("{}: the scan's header is damaged: it has {} axes, and 1 to 7 are valid; {}", name, num_axes,
                     kDamagedHeaderHint);
  }
  if (num_axes < 3) {
    throw data_error("{}: the scan has {} axes, and three are required; save a single slice as a PNG image", name,
                     num_axes);
  }
  for (int64_t axis = 1; axis <= num_axes; ++axis) {
    const int64_t size = fields.dim[axis];
    if (size < 1 || size > kMaxVoxelsPerAxis) {
      throw data_error("{}: the scan's header gives {} voxels along axis {}, and 1 to {} are supported; {}", name, size,
                       axis, kMaxVoxelsPerAxis, kDamagedHeaderHint);
    }
    if (axis > 4 && size > 1) {
      throw data_error(
          "{}: the scan has {} values along axis {}, after space and time (vectors or echoes); save each of them as a "
          "separate file",
          name, size, axis);
    }
  }
  std::copy_n(fields.dim + 1, 3, header.size.begin());
  header.num_frames = num_axes > 3 ? fields.dim[4] : 1;
  const int64_t num_voxels = header.size[0] * header.size[1] * header.size[2];
  if (num_voxels > kMaxVoxelsPerFrame) {
    throw data_error("{}: the scan's header gives {} × {} × {} voxels, more than {}; {}", name, header.size[0],
                     header.size[1], header.size[2], kMaxVoxelsPerFrame, kDamagedHeaderHint);
  }
}

/// Returns the scaling, or nothing if there is none: a slope of 0 or a slope that is not finite, as
/// in nibabel, or the identity.
std::optional<VoxelScaling> read_scaling(const nifti_2_header& fields, const std::string& name) {
  if (fields.scl_slope == 0 || !std::isfinite(fields.scl_slope)) return std::nullopt;
  if (!std::isfinite(fields.scl_inter)) {
    throw data_error(
        "{}: the scan's values are scaled by {} and shifted by {} (scl_inter), which is not a finite number; {}", name,
        fields.scl_slope, fields.scl_inter, kDamagedHeaderHint);
  }
  if (fields.scl_slope == 1 && fields.scl_inter == 0) return std::nullopt;
  return VoxelScaling{fields.scl_slope, fields.scl_inter};
}

/// Returns the offset of the first voxel in the decompressed file.
int64_t read_voxel_offset(const RawNiftiHeader& raw_header, const std::string& name) {
  const double offset = raw_header.voxel_offset;
  constexpr double kMaxVoxelOffset = 1LL << 40;  // larger than any file, and exact as a double
  const auto min_offset = static_cast<double>(raw_header.header_bytes + kExtenderBytes);
  if (!(offset >= min_offset && offset <= kMaxVoxelOffset) || offset != std::floor(offset)) {
    throw data_error("{}: the scan's voxels begin at byte {} (vox_offset), which is invalid: the header ends at {}; {}",
                     name, offset, min_offset, kDamagedHeaderHint);
  }
  return static_cast<int64_t>(offset);
}

/// Throws UserError (kBadData) if the stream cannot have all voxels, which start at `begin`.
void check_file_size(const NiftiHeader& header, int64_t begin, const VolumeStream& stream) {
  // Cannot overflow: at most 2^32 voxels, 2^14 frames and 8 bytes per voxel.
  const auto expected_file_bytes = static_cast<uint64_t>(begin + header.frame_bytes() * header.num_frames);
  if (expected_file_bytes <= stream.max_decompressed_bytes()) return;
  throw data_error(
      "{}: the scan's header requires {} bytes ({} × {} × {} voxels of {} bytes, {} frames, from byte {} on), but the "
      "file {} {}: it is truncated or damaged; {}",
      stream.name(), expected_file_bytes, header.size[0], header.size[1], header.size[2], get_voxel_bytes(header.type),
      header.num_frames, begin, stream.is_compressed() ? "cannot inflate to more than" : "has",
      stream.max_decompressed_bytes(), kDamagedHeaderHint);
}

}  // namespace

NiftiHeader read_nifti_header(VolumeStream& stream) {
  const RawNiftiHeader raw_header = read_raw_header(stream);
  const std::string& name = stream.name();
  NiftiHeader result{};
  read_shape(raw_header.fields, name, result);
  result.type = to_voxel_dtype(raw_header.fields.datatype, name);
  result.is_byte_swapped = raw_header.is_byte_swapped;
  result.scaling = read_scaling(raw_header.fields, name);
  result.affine = compute_best_affine(raw_header.fields, name);
  const int64_t begin = read_voxel_offset(raw_header, name);
  check_file_size(result, begin, stream);
  stream.skip(static_cast<uint64_t>(begin - raw_header.header_bytes));
  return result;
}

VolumeInfo make_volume_info(const NiftiHeader& header) {
  return {header.size, compute_spacing(header.affine), to_axis_codes(compute_axis_directions(header.affine)),
          header.num_frames};
}

}  // namespace vlmtrain::image
