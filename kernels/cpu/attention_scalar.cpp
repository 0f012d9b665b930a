#include "kernels/cpu/vec16_codes_scalar.h"

#include "kernels/cpu/attention_template.h"

namespace smartkv::kernels {

const AttentionKernels kAttentionScalar{block, merge, mass, promise, greater, gather};

}  // namespace smartkv::kernels
