#pragma once

#include <filesystem>
#include <string_view>

namespace vlmtrain {

/// Returns the kind of an existing path that is not a regular file: "a folder", "a named pipe", "a
/// socket" or "a device". Returns "" for a regular file, a missing path and a path without access.
/// Follows symbolic links. Never opens the path, because opening a pipe blocks and opening a device
/// may have side effects.
std::string_view describe_non_regular_file(const std::filesystem::path& path);

/// Returns true for names with the extension of a JPEG, PNG, WebP, TIFF, HEIC or AVIF file, in any
/// case: .jpg, .jpeg, .jpe, .jfif, .pjpeg, .pjp, .png, .webp, .tif, .tiff, .heic, .heif, .hif, .avif.
bool has_image_extension(const std::filesystem::path& file);

/// Returns true for names with the extension of a NIfTI volume, in any case: .nii, .nii.gz.
bool has_nifti_extension(const std::filesystem::path& file);

/// Returns true for names that begin with a dot, such as ._a.png, which macOS writes next to a.png.
bool is_hidden_file(const std::filesystem::path& file);

/// Returns true if `a` precedes `b` in natural order, in which runs of digits compare as numbers:
/// frame2 < frame10. The order is total: names that differ only in leading zeros compare by their
/// bytes.
bool precedes_in_natural_order(std::string_view a, std::string_view b);

}  // namespace vlmtrain
