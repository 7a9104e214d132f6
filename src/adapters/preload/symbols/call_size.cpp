#include "call_size.hpp"

namespace gpumem::preload {
namespace {

std::uint64_t bytes_of(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    default:
      return 4;  // an upper bound: compressed and planar formats take less
  }
}

}  // namespace

std::uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR& descriptor) {
  return driver_bytes(descriptor.Width * std::max<std::size_t>(descriptor.Height, 1) *
                      std::max(descriptor.NumChannels, 1U) * bytes_of(descriptor.Format));
}

std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned int levels) {
  if ((descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return 0;
  std::uint64_t bytes = 0;
  std::size_t width = descriptor.Width;
  std::size_t height = std::max<std::size_t>(descriptor.Height, 1);
  std::size_t depth = std::max<std::size_t>(descriptor.Depth, 1);
  const bool layered = (descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  for (unsigned int level = 0; level < std::max(levels, 1U); ++level) {
    bytes += width * height * depth * std::max(descriptor.NumChannels, 1U) * bytes_of(descriptor.Format);
    width = std::max<std::size_t>(width / 2, 1);
    height = std::max<std::size_t>(height / 2, 1);
    if (!layered) depth = std::max<std::size_t>(depth / 2, 1);
  }
  return driver_bytes(bytes);
}

call_size node_size(const CUDA_MEM_ALLOC_NODE_PARAMS& node_params) {
  if (node_params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return {};
  return {driver_bytes(node_params.bytesize), node_params.poolProps.location.id};
}

}  // namespace gpumem::preload
