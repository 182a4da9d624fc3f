#include "image/volume/nifti_header.h"

#include <nifti2_io.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>

#include "image/volume/axis_directions.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

constexpr std::string_view kRemedy = "copy or convert the scan again";
constexpr int32_t kNifti1Bytes = sizeof(nifti_1_header), kNifti2Bytes = sizeof(nifti_2_header);

/// Extensions may lie between header and voxels; four bytes say whether.
constexpr int64_t kExtenderBytes = 4;

struct StoredHeader {
  nifti_2_header fields;
  double voxels_begin;
  int64_t bytes;
  bool swapped;
};

std::string_view text_of(std::span<const char> field) {
  return std::string_view(field.data(), field.size());
}

UserError not_nifti(const std::string& name, std::string_view more) {
  return data_error("{}: not a NIfTI file (.nii or .nii.gz){}", name, more);
}

UserError part_of_pair(const std::string& name) {
  return data_error(
      "{}: the header of a pair of files (.hdr and .img), which is not read; make one file of them: in Python "
      "nibabel.save(nibabel.load(\"scan.hdr\"), \"scan.nii.gz\")",
      name);
}

/// NIfTI-1's fields that count here, with those of NIfTI-2's names.
nifti_2_header widened(const nifti_1_header& narrow) {
  nifti_2_header wide{};
  wide.datatype = narrow.datatype;
  std::copy_n(narrow.dim, 8, wide.dim);
  std::copy_n(narrow.pixdim, 8, wide.pixdim);
  wide.scl_slope = narrow.scl_slope;
  wide.scl_inter = narrow.scl_inter;
  wide.qform_code = narrow.qform_code;
  wide.sform_code = narrow.sform_code;
  wide.quatern_b = narrow.quatern_b;
  wide.quatern_c = narrow.quatern_c;
  wide.quatern_d = narrow.quatern_d;
  std::copy_n(narrow.srow_x, 4, wide.srow_x);
  std::copy_n(narrow.srow_y, 4, wide.srow_y);
  std::copy_n(narrow.srow_z, 4, wide.srow_z);
  return wide;
}

StoredHeader nifti_1_of(nifti_1_header header, const std::string& name) {
  const bool swapped = header.sizeof_hdr != kNifti1Bytes;
  if (swapped) nifti_swap_as_nifti1(&header);
  const std::string_view magic = text_of(header.magic);
  if (magic.starts_with("ni1")) throw part_of_pair(name);
  if (!magic.starts_with("n+1")) {
    throw not_nifti(name,
                    ", perhaps of the older format Analyze 7.5, which does not say where right and left are; "
                    "convert it to NIfTI");
  }
  return {widened(header), header.vox_offset, kNifti1Bytes, swapped};
}

StoredHeader nifti_2_of(nifti_2_header header, const std::string& name) {
  const bool swapped = header.sizeof_hdr != kNifti2Bytes;
  if (swapped) nifti_swap_as_nifti2(&header);
  const std::string_view magic = text_of(header.magic);
  if (magic.starts_with("ni2")) throw part_of_pair(name);
  if (!magic.starts_with("n+2")) throw not_nifti(name, "");
  return {header, static_cast<double>(header.vox_offset), kNifti2Bytes, swapped};
}

bool is_dicom(std::span<const uint8_t> bytes) {
  constexpr size_t kPreamble = 128;
  return std::memcmp(bytes.data() + kPreamble, "DICM", 4) == 0;
}

StoredHeader read_stored(VolumeStream& stream) {
  const std::string& name = stream.name();
  if (!stream.is_compressed() && stream.most_bytes() < kNifti1Bytes) throw not_nifti(name, ": it is too short for one");
  std::array<uint8_t, kNifti2Bytes> bytes{};
  stream.read(std::span(bytes).first(kNifti1Bytes));
  int32_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  const auto other_order = static_cast<int32_t>(__builtin_bswap32(static_cast<uint32_t>(size)));
  if (size == kNifti1Bytes || other_order == kNifti1Bytes) {
    nifti_1_header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    return nifti_1_of(header, name);
  }
  if (size == kNifti2Bytes || other_order == kNifti2Bytes) {
    if (!stream.is_compressed() && stream.most_bytes() < kNifti2Bytes) {
      throw not_nifti(name, ": it is too short for one");
    }
    stream.read(std::span(bytes).subspan(kNifti1Bytes));
    nifti_2_header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    return nifti_2_of(header, name);
  }
  if (is_dicom(bytes)) {
    throw not_nifti(name, " but DICOM; convert the folder of the series first: dcm2niix -z y -o OUT FOLDER");
  }
  throw not_nifti(name, "");
}

VoxelType voxel_type_of(int datatype, const std::string& name) {
  switch (datatype) {
    case DT_UINT8:
      return VoxelType::kUint8;
    case DT_INT8:
      return VoxelType::kInt8;
    case DT_UINT16:
      return VoxelType::kUint16;
    case DT_INT16:
      return VoxelType::kInt16;
    case DT_UINT32:
      return VoxelType::kUint32;
    case DT_INT32:
      return VoxelType::kInt32;
    case DT_UINT64:
      return VoxelType::kUint64;
    case DT_INT64:
      return VoxelType::kInt64;
    case DT_FLOAT32:
      return VoxelType::kFloat32;
    case DT_FLOAT64:
      return VoxelType::kFloat64;
    default:
      throw data_error(
          "{}: voxels of the datatype {} ({}), which is not read; save the scan with one real number a voxel, such as "
          "int16 or float32",
          name, datatype, nifti_datatype_to_string(datatype));
  }
}

/// Fills sizes and frames.
void read_axes(const nifti_2_header& fields, const std::string& name, NiftiHeader& header) {
  const int64_t axes = fields.dim[0];
  if (axes < 1 || axes > 7) {
    throw data_error("{}: the scan's header is damaged: {} axes, where there can be 1 to 7; {}", name, axes, kRemedy);
  }
  if (axes < 3) {
    throw data_error("{}: {} axes, and a scan has three; a single slice is a picture: save it as PNG", name, axes);
  }
  for (int64_t axis = 1; axis <= axes; ++axis) {
    const int64_t size = fields.dim[axis];
    if (size < 1 || size > kMostVoxelsOfAxis) {
      throw data_error("{}: the scan's header says {} voxels along axis {}, and 1 to {} are read; {}", name, size, axis,
                       kMostVoxelsOfAxis, kRemedy);
    }
    if (axis > 4 && size > 1) {
      throw data_error(
          "{}: the scan has {} values along axis {}, behind those of space and time, such as vectors or echoes; save "
          "each of them as a file of its own",
          name, size, axis);
    }
  }
  std::copy_n(fields.dim + 1, 3, header.size.begin());
  header.frames = axes > 3 ? fields.dim[4] : 1;
  const int64_t voxels = header.size[0] * header.size[1] * header.size[2];
  if (voxels > kMostVoxels) {
    throw data_error("{}: the scan's header says {} × {} × {} voxels, more than {}; {}", name, header.size[0],
                     header.size[1], header.size[2], kMostVoxels, kRemedy);
  }
}

std::optional<VoxelScaling> scaling_of(const nifti_2_header& fields, const std::string& name) {
  if (fields.scl_slope == 0 || !std::isfinite(fields.scl_slope)) return std::nullopt;
  if (!std::isfinite(fields.scl_inter)) {
    throw data_error("{}: the scan's values are scaled by {} and moved by {} (scl_inter), which is no number; {}", name,
                     fields.scl_slope, fields.scl_inter, kRemedy);
  }
  if (fields.scl_slope == 1 && fields.scl_inter == 0) return std::nullopt;
  return VoxelScaling{fields.scl_slope, fields.scl_inter};
}

int64_t voxels_begin(const StoredHeader& stored, const std::string& name) {
  const double place = stored.voxels_begin;
  constexpr double kFurthest = 1LL << 40;
  const auto least = static_cast<double>(stored.bytes + kExtenderBytes);
  if (!(place >= least && place <= kFurthest) || place != std::floor(place)) {
    throw data_error(
        "{}: the scan's voxels are said to begin at byte {} (vox_offset), where none can be: the header "
        "ends at {}; {}",
        name, place, least, kRemedy);
  }
  return static_cast<int64_t>(place);
}

void check_can_be_there(const NiftiHeader& header, int64_t begin, const VolumeStream& stream) {
  // No overflow: 2^32 voxels, 2^14 frames and 8 bytes at most.
  const auto promised = static_cast<uint64_t>(begin + header.frame_bytes() * header.frames);
  if (promised <= stream.most_bytes()) return;
  throw data_error(
      "{}: the scan's header promises {} bytes ({} × {} × {} voxels of {} bytes, {} frames, from byte {} on), and the "
      "file {} {}: it is cut off or damaged; {}",
      stream.name(), promised, header.size[0], header.size[1], header.size[2], bytes_of(header.type), header.frames,
      begin, stream.is_compressed() ? "cannot inflate to more than" : "has", stream.most_bytes(), kRemedy);
}

}  // namespace

NiftiHeader read_nifti_header(VolumeStream& stream) {
  const StoredHeader stored = read_stored(stream);
  const std::string& name = stream.name();
  NiftiHeader result{};
  read_axes(stored.fields, name, result);
  result.type = voxel_type_of(stored.fields.datatype, name);
  result.swapped = stored.swapped;
  result.scaling = scaling_of(stored.fields, name);
  result.affine = best_affine(stored.fields, name);
  const int64_t begin = voxels_begin(stored, name);
  check_can_be_there(result, begin, stream);
  stream.skip(static_cast<uint64_t>(begin - stored.bytes));
  return result;
}

VolumeInfo info_of(const NiftiHeader& header) {
  return {header.size, spacing_of(header.affine), axis_letters(axis_directions(header.affine)), header.frames};
}

}  // namespace vlmtrain::image
