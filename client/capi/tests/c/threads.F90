! Sessions of a worker's threads, from Fortran: the same program as threads.c, and the same bits. Standard
! Fortran has no threads, so one thread drives all sessions; with OpenMP each would be a thread's. Run by
! ci/bindings.sh.
program threads
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: int32, int64, real32
    use tidewater
    implicit none
    integer(int32), parameter :: iterations = 20, rows = 8
    type(c_ptr) :: session(8)
    type(tw_session_options) :: options
    type(tw_session_info) :: info
    integer(int64) :: mean(8), counts(8), keys(rows), number, ticket
    integer(int32) :: n, thread_count, iteration, row
    real(real32) :: values(rows)
    character(len=8) :: argument

    thread_count = 1
    if (command_argument_count() > 0) then
        call get_command_argument(1, argument)
        read (argument, *) thread_count
    end if
    options%sync = TW_BSP
    call check(tw_session_open(options, session(1)) == TW_OK, "open")
    do n = 2, thread_count
        call check(tw_session_sibling(session(1), session(n)) == TW_OK, "sibling")
    end do
    call check(tw_session_describe(session(1), info) == TW_OK, "describe")
    do n = 1, thread_count
        mean(n) = table_of(session(n), "mean", TW_F32, int(rows, int64), TW_CLOCK_MEAN)
        counts(n) = table_of(session(n), "counts", TW_I64, int(info%workers*thread_count, int64), &
            TW_IMMEDIATE)
    end do
    keys = [(int(row, int64), row=0, rows - 1)]
    do iteration = 0, iterations - 1
        do n = 1, thread_count
            number = info%rank*thread_count + n - 1
            call check(tw_pull_rows(session(n), mean(n), keys, values) == TW_OK, "pull")
            values = [(gradient(number, int(iteration, int64), int(row, int64)), row=0, rows - 1)]
            call check(tw_push_rows(session(n), mean(n), keys, values, TW_GRADIENT, ticket) == TW_OK, "push")
            call check(tw_push_wait(session(n), ticket, 0d0) == TW_OK, "wait")
            call check(tw_push_rows(session(n), counts(n), [number], [1_int64], TW_SUM, ticket) == TW_OK, "count")
            call check(tw_push_wait(session(n), ticket, 0d0) == TW_OK, "wait for a count")
            call check(tw_tick(session(n), 0_c_int32_t) == TW_OK, "tick")
        end do
    end do
    do n = thread_count, 2, -1
        call check(tw_finish(session(n)) == TW_OK, "a sibling finishes")
        call check(tw_session_free(session(n)) == TW_OK, "free")
    end do
    call check(tw_barrier(session(1), tw_text("all have finished"), 60d0) == TW_OK, "barrier")
    if (info%rank == 0) call print_all()
    call check(tw_finish(session(1)) == TW_OK, "finish")
    call check(tw_session_free(session(1)) == TW_OK, "free")

contains

    function table_of(owner, name, dtype, length, effect) result(table)
        type(c_ptr), intent(in) :: owner
        character(*), intent(in) :: name
        integer(int32), intent(in) :: dtype, effect
        integer(int64), intent(in) :: length
        integer(int64) :: table
        character(kind=c_char, len=:), allocatable, target :: text
        type(tw_table_options) :: of
        text = tw_text(name)
        of%name = c_loc(text)
        of%dtype = dtype
        of%kind = TW_ROWS
        of%rows = length
        of%cols = 1
        of%effect = effect
        if (effect == TW_CLOCK_MEAN) then
            of%optimizer = TW_SGD
            of%hyper(1) = 0.5d0
        end if
        call check(tw_table_create(owner, of, table) == TW_OK, "create")
    end function

    pure function gradient(thread, step, at) result(value)
        integer(int64), intent(in) :: thread, step, at
        real(real32) :: value
        integer(int64) :: number, size
        number = mod(thread*7919 + step*104729 + at*31, 2003_int64)
        size = ishft(1_int64, int(2*mod(thread*5 + step*3 + at, 5_int64)))
        value = real(number - 1001, real32)*real(size, real32)/3.0_real32
    end function

    subroutine print_all()
        integer(int64) :: pushes(info%workers*thread_count), all_keys(info%workers*thread_count)
        call check(tw_pull_rows(session(1), mean(1), keys, values) == TW_OK, "pull values")
        do row = 1, rows
            print '(a,i0,1x,z8.8)', "value.", row - 1, transfer(values(row), 0_int32)
        end do
        all_keys = [(int(n, int64), n=0, size(all_keys) - 1)]
        call check(tw_pull_rows(session(1), counts(1), all_keys, pushes) == TW_OK, "pull counts")
        do n = 1, size(pushes)
            print '(a,i0,1x,i0)', "count.", n - 1, pushes(n)
        end do
    end subroutine

    subroutine check(holds, what)
        logical, intent(in) :: holds
        character(*), intent(in) :: what
        if (holds) return
        print '(3a)', "not so: ", what, ": "//tw_last_error()
        error stop 1
    end subroutine
end program
