// All kernels, for one PTX file: tests/gpu/compile.sh.
#include "activation.cu"
#include "adamw.cu"
#include "attention.cu"
#include "dropout.cu"
#include "norm.cu"
#include "rows.cu"
#include "softmax.cu"
