! An MPI program that brings its servers, on threads of two ranks: no launcher of Tidewater, no variable, no file.
!   mpifort -o begin tidewater.f90 begin.F90 $(pkg-config --libs tidewater) && mpirun -n 4 ./begin
module mpi_broadcast
    use mpi_f08
    use tidewater
    implicit none
contains
    integer(c_int) function broadcast(bytes, length, context) bind(c)
        type(c_ptr), value :: bytes, context
        integer(c_size_t), value :: length
        integer(c_signed_char), pointer :: buffer(:)
        call c_f_pointer(bytes, buffer, [length])
        call MPI_Bcast(buffer, int(length), MPI_BYTE, 0, MPI_COMM_WORLD, broadcast)
    end function
    subroutine must(status)
        integer(c_int), intent(in) :: status
        if (status /= TW_OK) error stop tw_last_error()
    end subroutine
end module
program begin
    use mpi_broadcast
    type(c_ptr) :: session
    integer(int64) :: table, total(1)
    integer :: rank, size, t
    character(len=8, kind=c_char), target :: name = "counter"//c_null_char
    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, size)
    call must(tw_begin(tw_session_options(sync=TW_BSP), rank, size, 2, c_funloc(broadcast), c_null_ptr, session))
    call must(tw_table_create(session, tw_table_options(name=c_loc(name), kind=TW_RANGE, dtype=TW_I64, rows=1, &
        cols=1, effect=TW_CLOCK_SUM), table))
    do t = 1, 10
        call must(tw_push_range(session, table, 0_int64, [int(rank, int64)], TW_SUM))
        call must(tw_tick(session, 0))
    end do
    call must(tw_pull_range(session, table, 0_int64, total))
    if (rank == 0) print '(a, i0)', "sum ", total(1)
    call must(tw_leave(session))
    call MPI_Finalize()
end program
